"""The blocks of the pages about other libraries run here; the build of the documentation runs those of the others."""

# pyright: reportMissingImports=false

from importlib.util import find_spec
from pathlib import Path

import cloudpickle
import pytest

from ..blocks import PAGES_OF_LIBRARIES, reader, run_blocks


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES_OF_LIBRARIES, ids=lambda page: page.stem)
def test_blocks_run(page: Path, tmp_path: Path):
    # GPJax requires jax<0.11: its block runs in `nox -s compatibility-3.11`.
    without = None if find_spec("gpjax") else "import gpjax"
    with reader(tmp_path) as module:
        cloudpickle.register_pickle_by_value(module)  # as are functions of a script
        run_blocks(page, module, without=without)

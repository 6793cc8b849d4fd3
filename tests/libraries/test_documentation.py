"""The blocks of the page about other libraries run here; the build of the documentation runs those of the others."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from ..blocks import PAGE_OF_LIBRARIES, reader, run_blocks


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
def test_blocks_run(tmp_path: Path):
    # GPJax requires jax<0.11: its block runs in `nox -s compatibility-3.11`.
    without = None if find_spec("gpjax") else "import gpjax"
    with reader(tmp_path) as module:
        run_blocks(PAGE_OF_LIBRARIES, module, without=without)

"""The blocks of the pages about other libraries run here, as those of all other pages do in `tests`."""

from pathlib import Path

import pytest

from ..blocks import PAGES_OF_LIBRARIES, reader, run_blocks


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES_OF_LIBRARIES, ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path: Path):
    with reader(tmp_path) as module:
        run_blocks(page, module)

"""The blocks of the page about other libraries, and of the longest pages, run here; those of all others in `tests`."""

from pathlib import Path

import pytest

from ..blocks import PAGES_OF_LIBRARIES, reader, run_blocks


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES_OF_LIBRARIES, ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path: Path):
    with reader(tmp_path) as module:
        run_blocks(page, module)

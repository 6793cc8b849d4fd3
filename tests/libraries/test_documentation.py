"""The blocks of the page about other libraries run here; the build of the documentation runs those of the others."""

from pathlib import Path

import pytest

from ..blocks import PAGE_OF_LIBRARIES, reader, run_blocks


@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
def test_blocks_run(tmp_path: Path):
    with reader(tmp_path) as module:
        run_blocks(PAGE_OF_LIBRARIES, module)

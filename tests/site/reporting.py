"""How the tests report what they find: all of it, one line for each."""

from collections.abc import Sequence

import pytest


def expect_none(what: str, found: Sequence[str]) -> None:
    """Fail with every finding, and without the traceback, which says nothing about the site."""
    if found:
        pytest.fail("\n".join([f"{len(found)} {what}:", *found]), pytrace=False)

"""What is refused, and the words that say so."""

import re

import pytest


def refused(*words: str) -> "pytest.RaisesExc[ValueError]":
    """Expect a ValueError whose message contains these words, in this order."""
    return pytest.raises(ValueError, match=re.compile(".*".join(map(re.escape, words)), re.DOTALL))

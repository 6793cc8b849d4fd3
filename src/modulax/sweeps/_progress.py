"""The progress bar of a sweep: tqdm's, if it is installed."""

import contextlib
import importlib
import sys
from typing import Any

import jax


class Progress(contextlib.AbstractContextManager):
    """A bar that counts segments of members, and lines of text above it. Silent if it isn't wanted.

    Args:
        is_shown: whether anything is shown. Of several processes, only the first shows it.
    """

    def __init__(self, is_shown: bool):
        self._is_shown = is_shown and jax.process_index() == 0
        self._bar: Any = None

    def total(self, n: int) -> None:
        """Show the bar, of so many segments."""
        if self._is_shown:
            with contextlib.suppress(ImportError):  # without tqdm there are only the lines
                self._bar = importlib.import_module("tqdm.auto").tqdm(total=n, unit="segment", leave=False)

    def say(self, text: str) -> None:
        """Print a line."""
        if self._is_shown:
            sys.stderr.write(f"{text}\n") if self._bar is None else self._bar.write(text, file=sys.stderr)

    def advance(self, n: int) -> None:
        """Count segments."""
        if self._bar is not None:
            self._bar.update(n)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

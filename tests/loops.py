"""One test of many things of one kind."""

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def each(
    things: Iterable[Thing] | Callable[[], Iterable[Thing]],
) -> Callable[[Callable[[Thing], None]], Callable[[], None]]:
    """Decorate a check of one thing, which becomes a test of all; a failure says what is wrong with which of them."""

    def decorate(check: Callable[[Thing], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for thing in things() if callable(things) else things:
                try:
                    check(thing)
                except AssertionError as error:
                    broken.append(f"{thing}: {error}")
            assert not broken, "\n".join(broken)

        functools.update_wrapper(test, check)
        del test.__wrapped__  # pyright: ignore[reportFunctionMemberAccess] (whose argument pytest would take for a fixture)
        return test

    return decorate

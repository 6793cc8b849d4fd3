"""matplotlib, which only plots need."""

from typing import Any


def pyplot(owner: str, extra: str) -> Any:
    """Import `matplotlib.pyplot`, or raise an error that tells how to install it.

    Args:
        owner: the function that the user called.
        extra: the extra of modulax that brings matplotlib.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f'`{owner}` requires matplotlib: `pip install "modulax[{extra}]"`.') from error
    return plt

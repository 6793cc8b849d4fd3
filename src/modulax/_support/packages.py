"""Packages that only some functions need, which extras of modulax bring."""

import importlib
from typing import Any


def imported(module: str, owner: str, extra: str) -> Any:
    """Import a module of another package, or raise an error that tells how to install it.

    Args:
        module: the module.
        owner: what the user called.
        extra: the extra of modulax that brings the package.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f'`{owner}` requires {package}: `pip install "modulax[{extra}]"`.') from error

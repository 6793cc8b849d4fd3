"""Run a program with `modulax.compat` in the place of optax: `python -m modulax.compat script.py`, or `-m module`."""

import runpy
import sys
from pathlib import Path

from ._install import install


def main() -> None:
    """Run the script or the module that the command line names, with the arguments that follow it."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + is_module or arguments[0] in ("-h", "--help"):
        raise SystemExit("usage: python -m modulax.compat script.py [argument ...], or -m module [argument ...]")
    install()
    sys.argv = arguments[is_module:]
    if is_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()

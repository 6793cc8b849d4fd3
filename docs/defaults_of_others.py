"""Reads the defaults of the optimizers of PyTorch and Keras from their signatures into `defaults_of_others.json`.

The file names their argument for each of our hyperparameters: `betas.0` is the first entry of a tuple, and `-x` flips
the sign. The documentation is built without PyTorch and Keras. To read the defaults of other versions, run this file in
an environment that has both, and commit the result:

    python -m venv others && others/bin/pip install torch==2.13.0 keras
    KERAS_BACKEND=torch others/bin/python docs/defaults_of_others.py
"""

import importlib.metadata
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("defaults_of_others.json")


def default(optimizer: Any, argument: str) -> Any:
    """The default of an argument, or an entry of it."""
    name, _, entry = argument.removeprefix("-").partition(".")
    value = inspect.signature(optimizer.__init__).parameters[name].default
    value = value[int(entry)] if entry else value
    return -value if argument.startswith("-") else value


def main() -> None:
    libraries: Any = json.loads(FILE.read_text(encoding="utf-8"))
    for package, library in libraries.items():
        library["version"] = importlib.metadata.version(package).partition("+")[0]
        for record in library["optimizers"].values():
            optimizer = pkgutil.resolve_name(record["name"])
            for theirs in record["defaults"].values():
                theirs.update({argument: default(optimizer, argument) for argument in theirs})
    FILE.write_text(json.dumps(libraries, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Reads the defaults of the optimizers of PyTorch and Keras from their signatures into `defaults_of_others.json`.

The documentation is built without PyTorch and Keras. To read the defaults of other versions, run this file in an
environment that has both, and commit the result:

    python -m venv others && others/bin/pip install torch==2.13.0 keras
    KERAS_BACKEND=torch others/bin/python docs/defaults_of_others.py
"""

import importlib.metadata
import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).with_name("defaults_of_others.json")

# Our hyperparameters by theirs. `betas.0` is the first entry of a tuple; `-x` flips the sign.
_TORCH_ADAM = {"learning_rate": "lr", "b1": "betas.0", "b2": "betas.1", "eps": "eps"}
_KERAS = {"learning_rate": "learning_rate", "eps": "epsilon"}
_KERAS_ADAM = {**_KERAS, "b1": "beta_1", "b2": "beta_2"}
LIBRARIES: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "torch.optim": {
        "AMSGrad": ("Adam", _TORCH_ADAM),
        "Adadelta": ("Adadelta", {"learning_rate": "lr", "rho": "rho", "eps": "eps", "weight_decay": "weight_decay"}),
        "Adafactor": (
            "Adafactor",
            # Its `lr` is an upper bound of the relative step.
            {"decay_rate": "-beta2_decay", "clipping_threshold": "d", "weight_decay_rate": "weight_decay"},
        ),
        "Adagrad": (
            "Adagrad",
            {"learning_rate": "lr", "initial_accumulator_value": "initial_accumulator_value", "eps": "eps"},
        ),
        "Adam": ("Adam", _TORCH_ADAM),
        "AdamW": ("AdamW", {**_TORCH_ADAM, "weight_decay": "weight_decay"}),
        "Adamax": ("Adamax", _TORCH_ADAM),
        "LBFGS": ("LBFGS", {"learning_rate": "lr", "memory_size": "history_size", "linesearch": "line_search_fn"}),
        "Muon": (
            "Muon",
            {
                "learning_rate": "lr",
                "weight_decay": "weight_decay",
                "beta": "momentum",
                "nesterov": "nesterov",
                "ns_coeffs": "ns_coefficients",
                "ns_steps": "ns_steps",
                "eps": "eps",
            },
        ),
        "NAdam": ("NAdam", _TORCH_ADAM),
        "RAdam": ("RAdam", _TORCH_ADAM),
        "RMSProp": (
            "RMSprop",
            {"learning_rate": "lr", "decay": "alpha", "eps": "eps", "momentum": "momentum", "centered": "centered"},
        ),
        "Rprop": (
            "Rprop",
            {
                "learning_rate": "lr",
                "eta_minus": "etas.0",
                "eta_plus": "etas.1",
                "min_step_size": "step_sizes.0",
                "max_step_size": "step_sizes.1",
            },
        ),
        "SGD": ("SGD", {"learning_rate": "lr", "momentum": "momentum", "nesterov": "nesterov"}),
    },
    "keras.optimizers": {
        "AMSGrad": ("Adam", _KERAS_ADAM),
        "Adadelta": ("Adadelta", {**_KERAS, "rho": "rho", "weight_decay": "weight_decay"}),
        "Adafactor": (
            "Adafactor",
            {
                "learning_rate": "learning_rate",
                "decay_rate": "-beta_2_decay",
                "eps": "epsilon_1",
                "clipping_threshold": "clip_threshold",
                "weight_decay_rate": "weight_decay",
            },
        ),
        "Adagrad": ("Adagrad", {**_KERAS, "initial_accumulator_value": "initial_accumulator_value"}),
        "Adam": ("Adam", _KERAS_ADAM),
        "AdamW": ("AdamW", {**_KERAS_ADAM, "weight_decay": "weight_decay"}),
        "Adamax": ("Adamax", _KERAS_ADAM),
        "LAMB": ("Lamb", {**_KERAS_ADAM, "weight_decay": "weight_decay"}),
        "Lion": (
            "Lion",
            {"learning_rate": "learning_rate", "b1": "beta_1", "b2": "beta_2", "weight_decay": "weight_decay"},
        ),
        "Muon": (
            "Muon",
            {
                **_KERAS,
                "weight_decay": "weight_decay",
                "beta": "momentum",
                "nesterov": "nesterov",
                "ns_steps": "ns_steps",
                "adam_b1": "adam_beta_1",
                "adam_b2": "adam_beta_2",
                "adam_weight_decay": "adam_weight_decay",
                "consistent_rms": "rms_rate",
            },
        ),
        "NAdam": ("Nadam", _KERAS_ADAM),
        "RMSProp": ("RMSprop", {**_KERAS, "decay": "rho", "momentum": "momentum", "centered": "centered"}),
        "SGD": ("SGD", {"learning_rate": "learning_rate", "momentum": "momentum", "nesterov": "nesterov"}),
    },
}


def default(parameters: Any, path: str) -> Any:
    """The default of a parameter, or an entry of it."""
    name, _, entry = path.removeprefix("-").partition(".")
    value = parameters[name].default
    value = value[int(entry)] if entry else value
    return -value if path.startswith("-") else value


def main() -> None:
    found: dict[str, Any] = {}
    for module, classes in LIBRARIES.items():
        package = module.partition(".")[0]
        optimizers = {}
        for ours, (theirs, fields) in classes.items():
            parameters = inspect.signature(getattr(import_module(module), theirs).__init__).parameters
            optimizers[ours] = {
                "name": f"{module}.{theirs}",
                "defaults": {name: default(parameters, path) for name, path in fields.items()},
            }
        version = importlib.metadata.version(package).partition("+")[0]
        found[package] = {"version": version, "optimizers": optimizers}
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

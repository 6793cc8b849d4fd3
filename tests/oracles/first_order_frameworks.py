"""The families of `freeze_first_order.py` that are not of PyTorch: FTRL of Keras, Amos in JAX, Tiger in TensorFlow."""

import importlib
import os
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

os.environ["KERAS_BACKEND"] = "torch"
loops: Any = importlib.import_module("loops")  # its neighbour; the package around it needs JAX
released, stub, torch, STEPS = loops.released, loops.stub, loops.torch, loops.STEPS
Case, SMALL, add = loops.Case, loops.SMALL, loops.add
Arrays = dict[str, np.ndarray]


def ftrl() -> None:
    keras: Any = importlib.import_module("keras")
    keras.config.set_floatx("float64")

    def case(**hyperparameters: Any) -> Any:
        def run(start: Arrays) -> Iterator[Arrays]:
            params = {n: keras.Variable(w, dtype="float64") for n, w in start.items()}
            optimizer = keras.optimizers.Ftrl(**hyperparameters)
            for t in range(STEPS):
                points = {n: w.numpy() for n, w in params.items()}
                grads = [torch.tensor(SMALL.gradient(n, w, SMALL.noise[n][t])) for n, w in points.items()]
                optimizer.apply(grads, list(params.values()))
                yield {n: w.numpy().copy() for n, w in params.items()}

        return Case(SMALL.start, run)

    add("FTRL", default=case(learning_rate=0.5),
        all=case(learning_rate=0.3, learning_rate_power=-0.6, initial_accumulator_value=0.2,
                 l1_regularization_strength=0.3, l2_regularization_strength=0.05,
                 l2_shrinkage_regularization_strength=0.02, beta=0.1))  # fmt: skip


def amos() -> None:
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    module = released("google-research/jestimator", "jestimator/amos.py")

    def case(the_problem: Any, **hyperparameters: Any) -> Any:
        def run(start: Arrays) -> Iterator[Arrays]:
            params, transform = {n: jax.numpy.asarray(w) for n, w in start.items()}, module.amos(**hyperparameters)
            state = transform.init(params)
            for t in range(STEPS):
                grads = {n: the_problem.gradient(n, w, the_problem.noise[n][t]) for n, w in params.items()}
                updates, state = transform.update(grads, state, params)
                params = {n: w + updates[n] for n, w in params.items()}
                yield {n: np.asarray(w) for n, w in params.items()}

        return Case(the_problem.start, run)

    def reduced(name: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1, shape[1]) if len(shape) == 2 else ()

    eta = {"eta_fn": lambda name, shape: 0.5 if len(shape) == 1 else 1.0}
    some = {"beta": 0.9, "momentum": 0.8, "clip_value": 1.0, "extra_l2": 1e-2, "d_coef": 0.5, "c_coef": 0.4}
    falling = {"learning_rate": lambda count: 0.5 / (count + 4)}
    add("Amos", default=case(SMALL, learning_rate=0.1, **eta),
        all=case(SMALL, learning_rate=0.2, shape_fn=reduced, epsilon=0.1, **eta, **some),
        reduced=case(SMALL, learning_rate=0.1, shape_fn=reduced, **eta),
        scheduled=case(SMALL, **falling, **eta))  # fmt: skip


class Named(np.ndarray):
    """A variable of TensorFlow."""

    name = ""


def named(name: str, w: np.ndarray) -> Named:
    variable = w.copy().view(Named)
    variable.name = name
    return variable


class KerasOptimizer:
    """What an optimizer of Keras 2 inherits."""

    def __init__(self, name: str) -> None:
        self.iterations, self.slots = 0, {}

    def add_slot(self, var: Named, slot: str) -> None:
        self.slots[var.name] = np.zeros_like(np.asarray(var))

    def get_slot(self, var: Named, slot: str) -> np.ndarray:
        return self.slots[var.name]

    def _prepare(self, var_list: list[Named]) -> None:
        pass


def tensorflow_on_numpy() -> types.SimpleNamespace:
    """The functions of TensorFlow 1 that Tiger calls."""

    def assign(ref: np.ndarray, value: Any) -> np.ndarray:
        ref[...] = value
        return ref

    class Nothing:
        def __init__(self, values: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: Any) -> None: ...

    return types.SimpleNamespace(
        sqrt=np.sqrt, where=np.where, equal=np.equal, sign=np.sign, is_nan=np.isnan, reduce_any=np.any, assign=assign,
        zeros_like=np.zeros_like, ones_like=lambda x: np.ones_like(np.asarray(x, float)), float32=np.float64,
        reduce_mean=lambda x, axis, keepdims: np.mean(np.asarray(x), axis=axis, keepdims=keepdims),
        cast=lambda x, dtype: np.asarray(x, dtype), control_dependencies=Nothing,
        keras=types.SimpleNamespace(optimizers=types.SimpleNamespace(Optimizer=KerasOptimizer)),
    )  # fmt: skip


def tiger() -> None:
    """A dozen functions of TensorFlow 1, on NumPy, stand in for TensorFlow."""
    stub("tensorflow", **vars(tensorflow_on_numpy()))
    cls = released("bojone/tiger", "tiger.py").Tiger
    layers = loops.problem.KERAS

    def case(nan_at: tuple[int, ...] = (), **hyperparameters: Any) -> Any:
        def run(start: Arrays) -> Iterator[Arrays]:
            params = {n: named(n, w) for n, w in start.items()}
            optimizer = cls(**hyperparameters)
            optimizer._create_slots(list(params.values()))
            for t in range(STEPS):
                grads = {n: layers.gradient(n, np.asarray(w), layers.noise[n][t]) for n, w in params.items()}
                optimizer._prepare(list(params.values()))
                for n, w in params.items():
                    grads[n].flat[0] = np.nan if t in nan_at else grads[n].flat[0]
                    optimizer._resource_apply_dense(grads[n], w)
                optimizer.iterations += 1
                yield {n: np.array(w) for n, w in params.items()}

        return Case(layers.start, run)

    some = {"learning_rate": 0.1, "beta": 0.8, "weight_decay": 0.2}
    schedule = {"lr_schedule": {5: 1, 30: 0.1}, "shrink_ratio": 0.9}
    add("Tiger", default=case(learning_rate=0.05), all=case((8, 9, 20), **some, **schedule, grad_accum_steps=2),
        scheduled=case(**some, **schedule), nan=case((8, 9), **some, shrink_ratio=0.9))  # fmt: skip

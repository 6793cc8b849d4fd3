"""Training Flax NNX models: one step under `nnx.jit`, and other ways to run it."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from measure import interleaved, seconds, table

import modulax
import modulax.nnx

DATA = jnp.ones((8, 32))


def mlp() -> Any:
    """An MLP so small that overhead dominates."""
    return nnx.Sequential(*(nnx.Linear(32, 32, rngs=nnx.Rngs(0)) for _ in range(4)))


def mlp_loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - y) ** 2)


def training(quick: bool) -> str:
    """One training step of a Flax NNX model under `nnx.jit`: `flax.nnx.Optimizer` with optax against modulax.

    The models are the CNN and the transformer in `examples/`, and an MLP so small that overhead dominates.
    `modulax.nnx.Optimizer` holds every hyperparameter as an `nnx.Variable`; "stock" is `flax.nnx.Optimizer` with a
    modulax optimizer.
    """
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    cnn, transformer = importlib.import_module("nnx_cnn"), importlib.import_module("nnx_transformer")

    models: dict[str, tuple[Callable[[], Any], Callable[..., Any], Any]] = {
        "small MLP": (mlp, mlp_loss, (DATA, DATA)),
        "CNN": (lambda: cnn.CNN(nnx.Rngs(0)), cnn.loss_fn, (cnn.IMAGES[:64], cnn.LABELS[:64])),
        "transformer": (lambda: transformer.Transformer(nnx.Rngs(0)), transformer.loss_fn, transformer.batch(0)),
    }
    rows = []
    for name, (make, loss, arguments) in [*models.items()][: 1 if quick else None]:
        for graph in (True, False):

            @nnx.jit(graph=graph)
            def step(model: Any, optimizer: Any, *data: Any, graph: bool = graph, loss: Any = loss) -> Any:
                graphdef, params, rest = nnx.split(model, nnx.Param, ..., graph=graph)  # rest has integers
                value, grads = jax.value_and_grad(lambda p: loss(nnx.merge(graphdef, p, rest, copy=True), *data))(
                    params
                )
                optimizer.update(model, grads)
                return value

            trained = [make() for _ in range(3)]
            stock: Any = modulax.AdamW(1e-3)
            optimizers = [
                nnx.Optimizer(trained[0], optax.adamw(1e-3), wrt=nnx.Param, graph=graph),
                nnx.Optimizer(trained[1], stock, wrt=nnx.Param, graph=graph),
                modulax.nnx.Optimizer(trained[2], modulax.AdamW(1e-3), graph=graph),
            ]
            ways = [
                lambda m=m, o=o, step=step, arguments=arguments: step(m, o, *arguments)
                for m, o in zip(trained, optimizers, strict=True)
            ]
            times, ratios = interleaved(ways, 3 if quick else 600)
            leaves = len(jax.tree.leaves(nnx.state(trained[0], nnx.Param)))
            mode = "graph" if graph else "tree"
            rows.append([name, str(leaves), mode, seconds(times[0]), *(f"{ratio:.2f}" for ratio in ratios[1:])])
    head = ["model", "leaves", "mode", "optax", "modulax, stock", "`modulax.nnx.Optimizer`"]
    return table(head, rows, labels=3)


def nnx_loops(quick: bool) -> str:
    """Ways to run a training step of the small MLP; ratios to `nnx.jit` with `flax.nnx.Optimizer` and optax.

    "Split" is a `jax.jit` of the pure state of model and optimizer, which are merged within; "functional" is
    `optimizer.step` on the parameters, without `modulax.nnx.Optimizer`. "Update" is the update alone, in `nnx.jit` and
    without, with its own ratio to that of `flax.nnx.Optimizer`. The time is that of modulax.
    """
    rows = []
    for graph in (True, False):
        ways: dict[str, tuple[Any, Any]] = {
            "`nnx.jit`": (_whole_step(False, graph), _whole_step(True, graph)),
            "`nnx.cached_partial`": (_cached(False), _cached(True)) if graph else (None, None),
            "split": (_split(False, graph), _split(True, graph)),
            "functional": (None, _functional(graph)),
            "update, `nnx.jit`": (_update(False, graph, True), _update(True, graph, True)),
            "update": (_update(False, graph, False), _update(True, graph, False)),
        }
        reference = ways["`nnx.jit`"][0]
        for name, (theirs, ours) in ways.items():
            if ours is None:
                continue
            base = theirs if name.startswith("update") else reference
            times, ratios = interleaved([base, theirs or base, ours], 3 if quick else 300)
            optax_ratio = f"{ratios[1]:.2f}" if theirs else ""
            rows.append([name, "graph" if graph else "tree", seconds(times[2]), optax_ratio, f"{ratios[2]:.2f}"])
    return table(["step", "mode", "time", "optax", "modulax"], rows, labels=2)


def _made(ours: bool, graph: bool) -> tuple[Any, Any]:
    model = mlp()
    if ours:
        return model, modulax.nnx.Optimizer(model, modulax.AdamW(1e-3), graph=graph)
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param, graph=graph)


def _step(model: Any, optimizer: Any, *data: Any, graph: bool) -> Any:
    loss, grads = nnx.value_and_grad(mlp_loss, graph=graph)(model, *data)
    optimizer.update(model, grads)
    return loss


def _whole_step(ours: bool, graph: bool) -> Callable[[], Any]:
    model, optimizer = _made(ours, graph)
    step = nnx.jit(lambda m, o, *data: _step(m, o, *data, graph=graph), graph=graph)
    return lambda: step(model, optimizer, DATA, DATA)


def _cached(ours: bool) -> Callable[[], Any]:
    step = nnx.cached_partial(nnx.jit(lambda m, o, *data: _step(m, o, *data, graph=True)), *_made(ours, True))
    return lambda: step(DATA, DATA)


def _split(ours: bool, graph: bool) -> Callable[[], Any]:
    graphdef, state = nnx.split(_made(ours, graph), graph=graph)

    def pure_step(state: Any, *data: Any) -> Any:
        model, optimizer = nnx.merge(graphdef, state)
        loss = _step(model, optimizer, *data, graph=graph)
        return nnx.as_pure(nnx.state((model, optimizer), graph=graph)), loss

    step, held = jax.jit(pure_step, donate_argnums=0), [nnx.as_pure(state)]

    def run() -> Any:
        held[0], loss = step(held[0], DATA, DATA)
        return loss

    return run


def _functional(graph: bool) -> Callable[[], Any]:
    graphdef, variables, rest = nnx.split(mlp(), nnx.Param, ..., graph=graph)
    optimizer, params = modulax.AdamW(1e-3), nnx.as_pure(variables)

    def pure_step(params: Any, state: Any, *data: Any) -> Any:
        def loss_of(params: Any) -> jax.Array:
            return mlp_loss(nnx.merge(graphdef, params, rest, copy=True), *data)

        loss, grads = jax.value_and_grad(loss_of)(params)
        return *optimizer.step(grads, state, params), loss

    step, held = jax.jit(pure_step, donate_argnums=(0, 1)), [params, optimizer.init(params)]

    def run() -> Any:
        *held[:], loss = step(*held, DATA, DATA)
        return loss

    return run


def _update(ours: bool, graph: bool, jitted: bool) -> Callable[[], Any]:
    model, optimizer = _made(ours, graph)
    grads = jax.tree.map(jnp.copy, nnx.state(model, nnx.Param, graph=graph))

    def update(model: Any, optimizer: Any, grads: Any) -> None:
        optimizer.update(model, grads)

    run = nnx.jit(update, graph=graph) if jitted else update

    def call() -> Any:
        run(model, optimizer, grads)
        return nnx.as_pure(nnx.state(model, graph=graph))

    return call

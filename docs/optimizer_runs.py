"""Runs every optimizer on three small problems, and draws these runs for its page.

`python docs/optimizer_runs.py` runs them, which takes ten minutes, and writes `optimizer_runs.json`. An optimizer with
a learning rate is run with a range of them as one vmapped program, and the best run is kept. `pictures.py` draws what
is in the file, and runs the examples of the pages.
"""

import functools
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import drawing
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.typing import ArrayLike
from optimizer_examples import run_example
from sklearn.datasets import load_digits

import modulax as mx

FILE = Path(__file__).with_suffix(".json")
PROCESSES = 2
FULL_BATCHES = ("sgd, full batch", "adamw, full batch")  # what the optimizers of `FULL_BATCH` are compared with
IMAGES, BATCH, HIDDEN = 256, 32, 24
STEPS = 240  # in the valleys
ROUNDS, EVERY = 60, 5  # on the digits, where the loss over all images is measured before every round
RATES = {"valleys": np.geomspace(1e-3, 1.0, 10), "digits": np.geomspace(1e-3, 3.0, 8)}
# Their learning rate is a factor of a step size that they estimate, or there is none: the default is used.
UNTUNED = ("adafactor", "cocob", "dadaptadamw", "dog", "dowg", "lbfgs", "momo", "momoadam", "polyaksgd", "prodigy")
FULL_BATCH = ("lbfgs", "rprop")  # for deterministic losses; SGD and AdamW are run in this way too, to compare
ARGUMENTS: dict[str, dict[str, Any]] = {
    "dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 0.5, "key": 0},
    "apollo": {"rank": 8},
    "galore": {"rank": 8},  # by default, nothing is left out of matrices as small as these
    "momo": {"learning_rate": 1.0},
    "momoadam": {"learning_rate": 0.01},
}
# The momentum is a sum over the steps, not a mean.
SMALLER = {"simplifiedademamix": 0.01}
START = np.asarray([[[-2.0, 1.6]], [[-1.2, 1.6]]], np.float32)  # of the two valleys


def quadratic(x: ArrayLike, y: ArrayLike) -> Any:
    """A quadratic of condition number 30, rotated by 30 degrees, with its minimum at (0, 0)."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    along, across = np.cos(np.pi / 6), np.sin(np.pi / 6)
    return 0.05 * (along * x + across * y) ** 2 + 1.5 * (along * y - across * x) ** 2


def rosenbrock(x: ArrayLike, y: ArrayLike) -> Any:
    """A curved valley, with its minimum at (1, 1)."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    return (1 - x) ** 2 + 20 * (y - x**2) ** 2


VALLEYS = {
    "quadratic": drawing.Valley(
        "Quadratic, condition number 30", quadratic, (-2.6, 2.6), (-2.2, 2.2), np.geomspace(0.01, 12, 9), (0.0, 0.0)
    ),
    "rosenbrock": drawing.Valley(
        "Rosenbrock valley", rosenbrock, (-1.9, 1.9), (-0.9, 2.3), np.geomspace(0.3, 200, 8), (1.0, 1.0)
    ),
}


def network(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    """The cross-entropy of a network with one hidden layer."""
    hidden = jnp.tanh(images @ params["w1"] + params["b1"])
    losses = mx.losses.softmax_cross_entropy_with_integer_labels(hidden @ params["w2"] + params["b2"], labels)
    return jnp.mean(losses)


def step(optimizer: Any, loss: Any, params: Any, state: Any, **examples: jax.Array) -> tuple[Any, Any]:
    """A step, with every extra argument that some optimizer requires."""
    if optimizer.example_axes:
        if examples:
            one = jax.grad(lambda p, x: loss(p, **jtu.tree_map(lambda a: a[None], x)))
            grads = jax.vmap(one, in_axes=(None, 0))(params, examples)
        else:  # a batch whose examples are equal
            grads = jtu.tree_map(lambda g: jnp.broadcast_to(g, (BATCH, *g.shape)), jax.grad(loss)(params))
        return optimizer.step(grads, state, params)
    function = functools.partial(loss, **examples)
    value, grads = jax.value_and_grad(function)(params)
    return optimizer.step(grads, state, params, value=value, grad=grads, value_fn=function, obj_fn=function)


def valleys(optimizer: Any, rate: Any, which: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The path in one of the two valleys, and the losses along it."""
    optimizer = optimizer if rate is None else optimizer.replace(learning_rate=rate)

    def loss(w: jax.Array) -> jax.Array:  # w is a matrix of one row, so that Muon and GaLore treat it as a matrix
        return jnp.where(which == 0, quadratic(w[0, 0], w[0, 1]), rosenbrock(w[0, 0], w[0, 1]))

    def body(carry: Any, _: None) -> Any:
        params, state = carry
        evaluated = optimizer.eval_params(state, params)
        return step(optimizer, loss, params, state), (evaluated[0], loss(evaluated))

    return jax.lax.scan(body, (start, optimizer.init(start)), length=STEPS)[1]


def digits(optimizer: Any, rate: Any, start: Any, images: jax.Array, labels: jax.Array, batches: jax.Array) -> Any:
    """The loss over all images before every round of steps."""
    optimizer = optimizer if rate is None else optimizer.replace(learning_rate=rate)

    def one(carry: Any, rows: jax.Array) -> Any:
        return step(optimizer, network, *carry, images=images[rows], labels=labels[rows]), None

    def several(carry: Any, rows: jax.Array) -> Any:
        params, state = carry
        value = network(optimizer.eval_params(state, params), images, labels)
        return jax.lax.scan(one, carry, rows)[0], value

    return jax.lax.scan(several, (start, optimizer.init(start)), batches)[1]


def made(name: str) -> Any:
    """The optimizer, with some learning rate, which the runs replace."""
    rate = {} if name in UNTUNED else {"learning_rate": 0.1}
    return mx.get(name)(**rate, **ARGUMENTS.get(name, {}))


def best(losses: Any) -> int:
    """The run whose loss is small early and stays small; one that diverges never is."""
    with np.errstate(all="ignore"):
        from_here = np.maximum.accumulate(np.asarray(losses, np.float64)[..., ::-1], axis=-1)
        heights = np.mean(np.log(from_here + 1e-6), axis=-1)
    return int(np.argmin(np.where(np.isfinite(heights), heights, np.inf)))


def shortened(path: Any) -> list[list[float]]:
    """A path up to where it rests, to a tenth of a pixel; what is far away is all the same to a picture."""
    points = np.round(np.clip(np.nan_to_num(np.asarray(path, np.float64), nan=1e3), -1e3, 1e3), 3)
    moves = np.flatnonzero(np.any(points != points[-1], axis=1))
    return points[: moves[-1] + 2 if moves.size else 1].tolist()


def run(name: str, problem: tuple[Any, ...], full: tuple[Any, ...], *, only_full: bool = False) -> dict[str, Any]:
    """What a picture shows of an optimizer: paths, losses, and the learning rates that were chosen."""
    optimizer, is_tuned = made(name), name not in UNTUNED
    found: dict[str, Any] = {}
    axis = 0 if is_tuned else None
    sweeps = {problem: rates * SMALLER.get(name, 1.0) for problem, rates in RATES.items()}

    def swept(function: Any, rates: Any, *arguments: Any) -> Any:
        """The results of all learning rates on a leading axis, which has length 1 for an optimizer without one."""
        rest = (None,) * len(arguments)
        swept = jax.vmap(function, in_axes=(None, axis, *rest), axis_size=len(rates) if is_tuned else 1)
        return jax.jit(swept)(optimizer, jnp.asarray(rates, jnp.float32) if is_tuned else None, *arguments)

    if not only_full:
        both = jax.vmap(valleys, in_axes=(None, None, 0, 0))
        paths, losses = jax.device_get(swept(both, sweeps["valleys"], jnp.arange(2), jnp.asarray(START)))
        for i, valley in enumerate(("quadratic", "rosenbrock")):
            chosen = best(losses[:, i])
            rate = float(sweeps["valleys"][chosen]) if is_tuned else None
            found[valley] = {"rate": rate, "path": shortened(paths[chosen, i])}
    losses = np.asarray(swept(digits, sweeps["digits"], *(full if only_full or name in FULL_BATCH else problem)))
    chosen = best(losses)
    rate = float(sweeps["digits"][chosen]) if is_tuned else None
    found["digits"] = {"rate": rate, "loss": [float(f"{loss:.4g}") for loss in losses[chosen]]}
    return found


@functools.cache
def problems() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The start, the data and the batches of the network: small batches, and full ones."""
    images, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    start = {
        "w1": random.normal(size=(64, HIDDEN)) / 8,
        "b1": np.zeros(HIDDEN),
        "w2": random.normal(size=(HIDDEN, 10)) / 5,
        "b2": np.zeros(10),
    }
    start = jtu.tree_map(lambda x: jnp.asarray(x, jnp.float32), start)
    data = (start, jnp.asarray(images[:IMAGES] / 16, jnp.float32), jnp.asarray(labels[:IMAGES]))
    rows = [random.permutation(IMAGES)[:BATCH] for _ in range(ROUNDS * EVERY)]
    small = (*data, jnp.asarray(rows).reshape(ROUNDS, EVERY, BATCH))
    return small, (*data, jnp.broadcast_to(jnp.arange(IMAGES), (ROUNDS, EVERY, IMAGES)))


def rounded(rate: float) -> str:
    return f"{rate:.1g}" if rate >= 1e-4 else f"{rate:.0e}"


def draw_optimizer(folder: Path, name: str, found: dict[str, Any]) -> None:
    """The three pictures of an optimizer."""
    own = found[name]
    for where, valley in VALLEYS.items():
        drawing.path_in(valley, folder / f"{name}-{where}.svg", own[where]["path"])
    kind = ", full batch" if name in FULL_BATCH else ""
    curves = []
    for other, color in {"sgd": drawing.GREY, "adamw": drawing.BLUE, name: drawing.ORANGE}.items():
        run = own["digits"] if other == name else found[f"{other}{kind}"]["digits"]
        rate = f" {rounded(run['rate'])}" if run["rate"] else ""
        curves.append((f"{mx.get(other).__name__}{rate}", color, run["loss"]))
    curves.sort(key=lambda curve: curve[1] == drawing.ORANGE)
    title = f"Losses of {mx.get(name).__name__}, AdamW and SGD on digits"
    drawing.losses(folder / f"{name}-digits.svg", np.arange(ROUNDS) * EVERY, curves, title)


def runs_of(name: str) -> dict[str, Any]:
    """What the pictures show of an optimizer, or of one of `FULL_BATCHES`."""
    optimizer, _, kind = name.partition(", ")
    return run(optimizer, *problems(), only_full=bool(kind))


def write(names: Sequence[str]) -> None:
    """Run optimizers, and replace what the file has of them; it keeps no others than those of the library."""
    every = [*mx.available(), *FULL_BATCHES]
    old = results() if FILE.exists() else {}
    names = names or every
    with processes() as pool:
        found = old | dict(zip(names, pool.map(runs_of, names), strict=True))
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in every if name in found]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@functools.cache
def results() -> dict[str, Any]:
    """The runs by the names of the optimizers."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def processes() -> ProcessPoolExecutor:
    # JAX traces and compiles on one core.
    return ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"))


def show(folder: Path, name: str) -> None:
    """Run the example of an optimizer, and draw its pictures."""
    run_example(name)
    draw_optimizer(folder, name, results())


def draw(folder: Path) -> dict[str, dict[str, float | None]]:
    """Draw the pictures of all optimizers, and return the learning rates that were chosen, by problem."""
    names = mx.available()
    if missing := [name for name in names if name not in results()]:
        raise ValueError(f"{FILE.name} has no runs of `{missing[0]}`: `nox -s pictures -- {missing[0]}` makes them.")
    with processes() as pool:
        list(pool.map(show, [folder] * len(names), names))
    return {name: {problem: x["rate"] for problem, x in results()[name].items()} for name in names}


if __name__ == "__main__":
    write(sys.argv[1:])

"""`modulax.sweeps` on the digits MLP of `examples/digits.py`: time against optax, and what the searches find."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from measure import interleaved, seconds, table

import modulax
from modulax import sweeps
from modulax.sweeps._experiment import Experiment, Settings
from modulax.sweeps._hooks import Hooks
from modulax.sweeps._population import Lane

sys.path.append(str(Path(__file__).parents[1] / "examples"))
digits: Any = importlib.import_module("digits")

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def trained(
    model: Any, state: Any, step: Step, data: Any, key: Any, steps: int, scan: Callable[..., Any] = jax.lax.scan
) -> tuple[Any, Any, Any]:
    """Train on random batches: the model, the state, and the loss of every batch."""
    arrays, rest = eqx.partition((model, state), eqx.is_array)

    def body(arrays: Any, key: Any) -> tuple[Any, Any]:
        model, state = eqx.combine(arrays, rest)
        rows = jax.random.randint(key, (digits.BATCH_SIZE,), 0, len(data.train_images))
        batch = data.train_images[rows], data.train_labels[rows]
        loss, grads = eqx.filter_value_and_grad(digits.cross_entropy)(model, *batch)
        return eqx.filter(step(model, state, grads), eqx.is_array), loss

    arrays, losses = scan(body, arrays, jax.random.split(key, steps))
    return *eqx.combine(arrays, rest), losses


def make_train(steps: int) -> Callable[[Any, Any], Any]:
    """The training of the digits MLP as `sweeps.run` takes it; it returns the losses."""
    data = digits.load_data(0)

    def train(optimizer: Any, key: Any) -> Any:
        model = digits.make_model(key)

        def step(model: Any, state: Any, grads: Any) -> Any:
            return optimizer.step(grads, state, model)

        return trained(model, optimizer.init(model), step, data, key, steps)[2]

    return train


def grid(count: int) -> sweeps.Sweep:
    return sweeps.grid(modulax.AdamW(1e-3), learning_rate=_rates(count))


def _rates(count: int) -> np.ndarray:
    return np.logspace(-5, -1, count).astype(np.float32)


def sweep_times(quick: bool) -> str:
    """64 learning rates of AdamW on the digits MLP, 500 steps each, from the first trace to the last result.

    With optax, whose `adamw(rate)` is made inside the function under `vmap`; as `jax.jit(jax.vmap(train))` over a batch
    of `AdamW`; as `sweeps.run`, on one device and with each core of the CPU as a device; and with optax in a loop of 64
    closures, each compiled. The ratios are to the first; the last column is without tracing and compilation.
    """
    count, steps = (2, 2) if quick else (64, 500)
    rates, data, key = _rates(count), digits.load_data(0), jax.random.key(0)
    members, with_modulax = grid(count), make_train(steps)

    def with_optax(tx: Any, key: Any) -> Any:
        model = digits.make_model(key)

        def step(model: Any, state: Any, grads: Any) -> Any:
            updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_array))
            return eqx.apply_updates(model, updates), state

        return trained(model, tx.init(eqx.filter(model, eqx.is_array)), step, data, key, steps)[2]

    def closures() -> Any:
        return [jax.jit(lambda key, rate=float(rate): with_optax(optax.adamw(rate), key))(key) for rate in rates]

    def inside_program() -> Any:
        return jax.jit(jax.vmap(lambda rate, key: with_optax(optax.adamw(rate), key), (0, None)))

    def by_hand_program() -> Any:
        return jax.jit(jax.vmap(lambda optimizer, key: with_modulax(optimizer, key), (0, None)))

    ways = [
        lambda: inside_program()(rates, key),
        lambda: by_hand_program()(members.batched(), key),
        lambda: sweeps.run(members, with_modulax, key=key, progress=False).metrics,
        closures,
    ]
    first = [_once(way) for way in ways]
    again = inside_program(), by_hand_program()
    runs = [
        lambda: again[0](rates, key),
        lambda: again[1](members.batched(), key),
        _executed(members, with_modulax, key),
    ]
    times, _ = interleaved(runs, 1 if quick else 7)
    cores = _on_every_core(count, steps)
    names = ["optax, `adamw(rate)` in a `vmap`", "`jax.vmap(train)`", "`sweeps.run`"]
    names += [f"`sweeps.run`, `JAX_NUM_CPU_DEVICES={os.cpu_count()}`", "optax, a loop"]
    *of_programs, of_loop = first
    executed = [*map(seconds, times), seconds(cores[1]), ""]
    rows = [
        [name, seconds(t), f"{t / first[0]:.2f}", e]
        for name, t, e in zip(names, [*of_programs, cores[0], of_loop], executed, strict=True)
    ]
    return table([f"{count} rates", "time", "ratio", "without compilation"], rows)


def _on_every_core(count: int, steps: int) -> list[float]:
    """The times of `sweeps.run` in a process where each core is a device: the first run, and a later one."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(os.cpu_count())}
    command = [sys.executable, __file__, str(count), str(steps)]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def _print_times(count: int, steps: int) -> None:
    members, train, key = grid(count), make_train(steps), jax.random.key(0)
    first = _once(lambda: sweeps.run(members, train, key=key, progress=False).metrics)
    executed = _executed(members, train, key)
    executed()
    print(json.dumps([first, min(_once(executed) for _ in range(3))]))


def _once(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def _executed(members: sweeps.Sweep, train: Any, key: Any) -> Callable[[], Any]:
    """What `run` executes after the compilation: a lane from the beginning, metrics on the host."""
    experiment = Experiment(members, train, seeds=1, key=key, devices=None, segments=1)
    structure = experiment.structures[0]
    return lambda: Lane(structure, structure.group.members, experiment.keys, len(members)).advance(0)


def make_trainable(data: Any, steps: int) -> sweeps.Trainable:
    """The digits MLP in segments of so many steps; the metric is the validation loss."""

    def start(optimizer: Any, key: Any) -> Any:
        model = digits.make_model(key)
        return model, optimizer.init(model), key

    def advance(optimizer: Any, carry: Any) -> Any:
        model, state, key = carry
        key, now = jax.random.split(key)

        def step(model: Any, state: Any, grads: Any) -> Any:
            return optimizer.step(grads, state, model)

        model, state, _ = trained(model, state, step, data, now, steps)
        return (model, state, key), {"loss": digits.cross_entropy(model, data.valid_images, data.valid_labels)}

    return sweeps.Trainable(start, advance)


def sweep_searches(quick: bool) -> str:
    """Searches on the digits MLP against sweeps of the same members: the best validation loss, and the time.

    Successive halving drops two thirds of 81 members after 1, 3 and 9 of 27 segments. Population-based training of 16
    members is compared with the same 16 members without it, over 5 random keys; its losses are medians.

    A loss is that of the seed by which the member was chosen, with which the smallest of 81 is lucky too. The 16
    members without `pbt` train at constant rates; a schedule that decays is not compared.
    """
    data = digits.load_data(0)
    rows = []
    steps, ends, sizes, keys = (2, [1, 2], (4, 4), 1) if quick else (150, [1, 3, 9, 27], (9, 9), 5)
    trainable = make_trainable(data, steps)
    members = sweeps.grid(
        modulax.AdamW(1e-3),
        learning_rate=np.logspace(-4.5, -1, sizes[0]),
        weight_decay=np.logspace(-4, 0, sizes[1]),
    )
    found = {}
    for name, search in {
        "all members": lambda: sweeps.run(members, trainable, segments=ends[-1], progress=False),
        "`halving`": lambda: sweeps.halving(members, trainable, "loss", rungs=ends, progress=False),
    }.items():
        start = time.perf_counter()
        results = search()
        found[name] = time.perf_counter() - start, results.best("loss")[1]
    whole = found["all members"]
    for name, (t, row) in found.items():
        what = f"lr {row['learning_rate']:.2g}, decay {row['weight_decay']:.2g}"
        rows.append(
            [
                f"{len(members)} members, {name}",
                what,
                f"{row['loss']:.4f}",
                f"{row['loss'] / whole[1]['loss']:.3f}",
                seconds(t),
                f"{t / whole[0]:.2f}",
            ]
        )

    steps, segments, size = (2, 2, 4) if quick else (25, 20, 16)
    trainable = make_trainable(data, steps)
    losses, times = [], []
    for i in range(keys):
        key = jax.random.key(i)
        population = sweeps.sample(
            key,
            modulax.AdamW(1e-3),
            size,
            learning_rate=sweeps.LogUniform(1e-4, 1e-1),
            weight_decay=sweeps.LogUniform(1e-4, 1),
        )
        start = time.perf_counter()
        fixed = sweeps.run(population, trainable, segments=segments, key=key, progress=False)
        between = time.perf_counter()
        explore = {"learning_rate": 1.2, "weight_decay": 1.2}
        changed = sweeps.pbt(population, trainable, "loss", segments=segments, explore=explore, key=key, progress=False)
        times.append((between - start, time.perf_counter() - between))
        losses.append((fixed.best("loss")[1]["loss"], changed.best("loss")[1]["loss"]))
    loss, spent = np.median(losses, axis=0), np.median(times, axis=0)
    for j, name in enumerate(("fixed", "`pbt`")):
        rows.append(
            [
                f"{size} members, {name}",
                f"{keys} keys",
                f"{loss[j]:.4f}",
                f"{loss[j] / loss[0]:.3f}",
                seconds(spent[j]),
                f"{spent[j] / spent[0]:.2f}",
            ]
        )
    return table(["search", "best", "loss", "ratio", "time", "ratio"], rows)


def streamed_data(quick: bool) -> str:
    """Batches that a thread reads from a file, by `data=`, against the same batches on the device.

    16 rates of AdamW on the digits MLP, in 20 segments of 50 steps; without compilation.
    """
    count, segments, steps = (2, 2, 2) if quick else (16, 20, 50)
    digit = digits.load_data(0)
    rows = np.random.default_rng(0).integers(len(digit.train_images), size=(segments, steps, digits.BATCH_SIZE))

    def start(optimizer: Any, key: Any) -> Any:
        model = digits.make_model(key)
        return model, optimizer.init(model)

    def advance(optimizer: Any, carry: Any, batches: Any) -> Any:
        arrays, rest = eqx.partition(carry, eqx.is_array)

        def step(arrays: Any, batch: Any) -> Any:
            model, state = eqx.combine(arrays, rest)
            loss, grads = eqx.filter_value_and_grad(digits.cross_entropy)(model, *batch)
            return eqx.filter(optimizer.step(grads, state, model), eqx.is_array), loss

        arrays, losses = jax.lax.scan(step, arrays, batches)
        return eqx.combine(arrays, rest), losses

    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/images.npy", np.asarray(digit.train_images)[rows])
        images, labels = np.load(f"{folder}/images.npy", mmap_mode="r"), np.asarray(digit.train_labels)[rows]
        there = jax.numpy.asarray(images), jax.numpy.asarray(labels)

        def of_segment(optimizer: Any, carry: Any, segment: Any) -> Any:
            return advance(optimizer, carry, jax.tree.map(lambda x: x[segment], there))

        def trained(advance: Any, data: Any) -> Callable[[], Any]:
            training = sweeps.Trainable(start, advance)
            experiment = Experiment(grid(count), training, key=None, devices=None, segments=segments, data=data)

            def run() -> Any:
                experiment.segments[:] = 0
                with experiment.session("run", Settings(None, None, None, None, False, Hooks(None)), work=1):
                    experiment.train([*range(count)], segments)

            return run

        runs = [trained(of_segment, None), trained(advance, lambda segment: (images[segment], labels[segment]))]
        times, ratios = interleaved(runs, 1 if quick else 9)
    names = ["on the device", "`data=`, from a file"]
    cells = [[name, seconds(t), f"{r:.2f}"] for name, t, r in zip(names, times, ratios, strict=True)]
    return table(["data", "time", "ratio"], cells)


if __name__ == "__main__":
    _print_times(*map(int, sys.argv[1:]))

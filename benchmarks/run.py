"""Measure modulax against optax in one process, and write `results.json` and `RESULTS.md` next to this file.

Ratios are modulax over optax: below one, modulax is faster. `--only NAME...` measures some parts and leaves the figures
of the others. `--compare THEN` prints the new figures beside those of a commit or a file and writes them as well;
`--compare THEN NOW` measures nothing. `--quick` runs every part once, on small trees, and writes nothing.
"""

import argparse
import functools
import gc
import inspect
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import results
from assignment import assignment, linear_algebra
from cross_entropy import cross_entropy
from ctc import ctc
from instructions import instructions
from large_array import large_array
from low_bit import low_bit_state
from low_precision import low_precision, low_precision_steps
from matrices import matrices
from measure import carried, interleaved, medians, seconds, step_of, table, tree
from nnx_training import nnx_loops, training
from projections import projections
from small_costs import imports, inits, reading
from spikes import spikes
from stacked import stacked
from sweeps import streamed_data, sweep_searches, sweep_times
from sweeps_search import hypergradients, range_test, with_optuna

import modulax
import modulax.compat


def modulax_step(optimizer: Any, params: Any, state: Any, grads: Any) -> Any:
    updates, state = optimizer.update(grads, state, params)
    return modulax.apply_updates(params, updates), state


def eager(quick: bool) -> str:
    """`optimizer.update` as it is, against `jax.jit(tx.update)`."""
    rows = []
    for leaves in (10,) if quick else (10, 100, 1000):
        params = tree(leaves)
        ours, theirs = modulax.AdamW(1e-3), optax.adamw(1e-3)
        state, their_state = ours.init(params), theirs.init(params)
        update = jax.jit(theirs.update)
        (t, u), (_, ratio) = interleaved(
            [lambda: update(params, their_state, params), lambda: ours.update(params, state, params)],  # noqa: B023
            3 if quick else 3000 // leaves + 30,
        )
        returned, ready = [], []
        for _ in range(3 if quick else 20):
            start = time.perf_counter()
            result = ours.update(params, state, params)
            returned.append(time.perf_counter() - start)
            jax.block_until_ready(result)
            ready.append(time.perf_counter() - start)
        rows.append([str(leaves), seconds(t), seconds(u), f"{ratio:.2f}", seconds(min(returned)), seconds(min(ready))])
    head = ["leaves", "optax, jitted", "modulax, eager", "ratio", "returns after", "ready after"]
    return table(head, rows)


def drop_in(quick: bool) -> str:
    """`tx.update` of `modulax.compat` as it is, on 10 leaves, against optax's under `jax.jit` and as it is."""

    def labels(params: Any) -> Any:
        return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "vector", params)

    made: dict[str, Callable[[Any], Any]] = {
        "`adamw`": lambda o: o.adamw(1e-3),
        "`chain`: clipping, `adamw` with a schedule": lambda o: o.chain(
            o.clip_by_global_norm(1.0), o.adamw(o.cosine_decay_schedule(1e-3, 100))
        ),
        "`inject_hyperparams(adamw)`": lambda o: o.inject_hyperparams(o.adamw)(learning_rate=1e-3),
        "`multi_transform`: `adamw`, `sgd`": lambda o: o.multi_transform(
            {"matrix": o.adamw(1e-3), "vector": o.sgd(0.1, momentum=0.9)}, labels
        ),
    }
    params, rows = tree(10), []
    for name, make in made.items():
        theirs, ours = make(optax), make(modulax.compat)
        state, their_state = ours.init(params), theirs.init(params)
        update = jax.jit(theirs.update)
        calls = [
            lambda: update(params, their_state, params),  # noqa: B023
            lambda: ours.update(params, state, params),  # noqa: B023
        ]
        (t, u), (_, ratio) = interleaved(calls, 3 if quick else 330)
        # Apart, and in fewer rounds: it takes milliseconds, after which the caches hold nothing of the others.
        (slow,), _ = interleaved([lambda: theirs.update(params, their_state, params)], 3 if quick else 60)  # noqa: B023
        rows.append([name, seconds(t), seconds(u), f"{ratio:.2f}", seconds(slow), f"{u / slow:.3f}"])
    return table(["", "optax, jitted", "compat, eager", "ratio", "optax, eager", "ratio"], rows)


def step(quick: bool) -> str:
    """Update and apply inside one `jax.jit`."""
    rows = []
    for leaves in (10,) if quick else (10, 100, 150, 1000):
        params = tree(leaves)
        ours, theirs = modulax.AdamW(1e-3), optax.adamw(1e-3)
        state, their_state = ours.init(params), theirs.init(params)
        on_device = jax.device_put(ours)
        their_step = jax.jit(step_of(theirs, optax.apply_updates))
        our_step = jax.jit(modulax_step)
        closed = jax.jit(lambda p, s, g: modulax_step(ours, p, s, g))  # noqa: B023
        times, ratios = interleaved(
            [
                lambda: their_step(params, their_state, params),  # noqa: B023
                lambda: closed(params, state, params),  # noqa: B023
                lambda: our_step(on_device, params, state, params),  # noqa: B023
                lambda: our_step(ours, params, state, params),  # noqa: B023
                lambda: ours.step(params, state, params),  # noqa: B023
            ],
            3 if quick else 3000 // leaves + 30,
        )
        rows.append([str(leaves), seconds(times[0]), *(f"{ratio:.2f}" for ratio in ratios[1:])])
    head = ["leaves", "optax", "closed over", "argument, on the device", "argument, as built", "`optimizer.step`"]
    return table(head, rows)


def program(quick: bool) -> str:
    """Time to trace and lower, and to compile, update-and-apply; the optimizer is closed over, or an argument.

    optax closes over its hyperparameters, which makes them constants of the program. As an argument they are live: a
    new value does not recompile. The parameters have new names in every round, so that no cache is hit.
    """
    rows = []
    ours, theirs = modulax.AdamW(1e-3), optax.adamw(1e-3)
    ways: dict[str, Callable[..., Any]] = {
        "optax": lambda p, _, s: jax.jit(lambda *a: step_of(theirs, optax.apply_updates)(*a)).lower(p, s, p),
        "closed over": lambda p, s, _: jax.jit(lambda *a: modulax_step(ours, *a)).lower(p, s, p),
        "argument": lambda p, s, _: jax.jit(lambda *a: modulax_step(*a)).lower(ours, p, s, p),
    }
    for leaves in (10,) if quick else (150, 1000):
        rounds = 1 if quick else 3000 // leaves + 5
        lower_times: list[list[float]] = [[] for _ in ways]
        compile_times: list[list[float]] = [[] for _ in ways]
        for i in range(-1, rounds):  # the first round warms up
            for j in range(len(ways)):
                k = (i + j) % len(ways)
                params = {f"{name}.{i}.{j}": p for name, p in tree(leaves).items()}
                trees = params, jax.eval_shape(ours.init, params), jax.eval_shape(theirs.init, params)
                gc.collect()
                start = time.perf_counter()
                lowered = list(ways.values())[k](*trees)
                between = time.perf_counter()
                lowered.compile()
                if i >= 0:
                    lower_times[k].append(between - start)
                    compile_times[k].append(time.perf_counter() - between)
        lowering, compiling = medians(lower_times), medians(compile_times)
        for i, name in enumerate(ways):
            row = [seconds(lowering[0][i]), f"{lowering[1][i]:.2f}", seconds(compiling[0][i])]
            rows.append([str(leaves), name, *row, f"{compiling[1][i]:.2f}"])
    return table(["leaves", "", "trace + lower", "ratio", "compile", "ratio"], rows, labels=2)


def sweep(quick: bool) -> str:
    """Training with 32 learning rates, from the first trace to the last step.

    As one `vmap` over the rates, in which optax makes `adamw(rate)`; as one over a batch of `AdamW`; and with optax in
    a loop, as a user writes it whose optimizer is made outside of the training: a program for each rate.
    """
    count, steps = (4, 5) if quick else (32, 100)
    rates = [10 ** (-4 + 3 * i / count) for i in range(count)]
    params = {f"layer{i}": jnp.full((32, 32), 0.1) for i in range(6)}

    def loss(p: Any) -> jax.Array:
        x = jnp.ones(32)
        for w in p.values():
            x = jnp.tanh(w @ x)
        return jnp.sum((x - 0.5) ** 2)

    def trained(optimizer: Any, apply_updates: Any, p: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            p, s = carry
            updates, s = optimizer.update(jax.grad(loss)(p), s, p)
            return (apply_updates(p, updates), s), None

        return jax.lax.scan(body, (p, optimizer.init(p)), length=steps)[0][0]

    def inside() -> Any:
        return jax.jit(jax.vmap(lambda rate: trained(optax.adamw(rate), optax.apply_updates, params)))(
            jnp.asarray(rates)
        )

    def batch() -> Any:
        train = eqx.filter_jit(eqx.filter_vmap(lambda optimizer: trained(optimizer, modulax.apply_updates, params)))
        return train(eqx.filter_vmap(modulax.AdamW)(jnp.asarray(rates)))

    def loop() -> Any:
        made = [optax.adamw(rate) for rate in rates]
        return [jax.jit(functools.partial(trained, tx, optax.apply_updates))(params) for tx in made]

    times, ratios = interleaved([inside, batch, loop], 1 if quick else 5)
    return table(
        ["rates", "optax, `adamw(rate)` in a `vmap`", "modulax, one `vmap`", "ratio", "optax, a loop"],
        [[str(count), seconds(times[0]), seconds(times[1]), f"{ratios[1]:.2f}", seconds(times[2])]],
    )


def donation(quick: bool) -> str:
    """`optimizer.step` on one large parameter, with and without `donate=True`."""
    size = 10_000 if quick else 8_000_000
    optimizer = modulax.AdamW(1e-3)
    grads = {"w": jnp.full((size,), 0.1)}
    kept = [jax.tree.map(jnp.copy, grads), None]
    kept[1] = optimizer.init(kept[0])
    given = [jax.tree.map(jnp.copy, grads), None]
    given[1] = optimizer.init(given[0])

    def keep() -> Any:
        return optimizer.step(grads, kept[1], kept[0])

    def give() -> Any:
        given[:] = optimizer.step(grads, given[1], given[0], donate=True)
        return given

    (t, u), (_, ratio) = interleaved([keep, give], 3 if quick else 40)
    return table(["parameters", "kept", "donated", "ratio"], [[f"{size:,}", seconds(t), seconds(u), f"{ratio:.2f}"]])


def containers(quick: bool) -> str:
    """Overhead of a container around AdamW: update and apply inside one `jax.jit`, for 100 leaves.

    The ratio is to a bare modulax AdamW. Some containers do additional work by design: they keep an average, take a
    second gradient step, or evaluate a condition.
    """
    adam = modulax.AdamW(1e-3)
    ways = {
        "none": adam,
        "`Chain`": modulax.Chain(adam),
        "`Masked`": modulax.Masked(adam, True),
        "`Partition`": modulax.Partition({"a": adam, "b": adam}, modulax.by_path({"*0": "a", "*": "b"})),
        "`ScaleByPath`": modulax.Chain(adam, modulax.ScaleByPath({"*0": 0.5, "*": 1.0})),
        "`groups`": modulax.groups(adam, {"*0": {"learning_rate": 1e-2}}),
        "`Scheduled`": modulax.Scheduled(adam),
        "`Injected`": modulax.Injected(adam),
        "`MultiSteps`, 1": modulax.MultiSteps(adam, 1),
        "`ApplyIfFinite`": modulax.ApplyIfFinite(adam, 5),
        "`SkipSpikes`": modulax.SkipSpikes(adam),
        "`ConditionallyTransform`": modulax.ConditionallyTransform(adam, lambda step: step >= 0),
        "`ParamEMA`": modulax.ParamEMA(adam),
        "`ParamAverage`": modulax.ParamAverage(adam),
        "`ParamAverage`, window 4": modulax.ParamAverage(adam, window=4),
        "`Lookahead`": modulax.Lookahead(adam, 5, 0.5),
        "`ScheduleFree`": modulax.ScheduleFree(adam, 1e-3),
        "`Mechanize`": modulax.Mechanize(adam),
        "`Flatten`": modulax.Flatten(adam),
        "`SplitRealAndImaginary`": modulax.SplitRealAndImaginary(adam),
    }
    params = tree(10 if quick else 100)
    runs = []
    for transform in ways.values():
        # Closed over, as in most programs. Each keeps training, so that periodic work is measured too.
        train = jax.jit(lambda p, s, g, t=transform: modulax_step(t, p, s, g))
        runs.append(carried(train, [params, transform.init(params)], params))
    times, ratios = interleaved(runs, 3 if quick else 100)
    rows = [[name, seconds(t), f"{r:.2f}"] for name, t, r in zip(ways, times, ratios, strict=True)]
    return table(["container", "step", "ratio"], rows)


PARTS = {
    "eager": eager,
    "compat": drop_in,
    "step": step,
    "instructions": instructions,
    "init": inits,
    "import": imports,
    "hyperparameters": reading,
    "program": program,
    "sweep": sweep,
    "sweeps": sweep_times,
    "searches": sweep_searches,
    "streamed data": streamed_data,
    "range test": range_test,
    "hypergradients": hypergradients,
    "optuna": with_optuna,
    "donation": donation,
    "large array": large_array,
    "containers": containers,
    "spikes": spikes,
    "small parameters": stacked,
    "low precision": low_precision,
    "steps in low precision": low_precision_steps,
    "low-bit state": low_bit_state,
    "training": training,
    "nnx loops": nnx_loops,
    "ctc": ctc,
    "cross_entropy": cross_entropy,
    "projections": projections,
    "assignment": assignment,
    "linear algebra": linear_algebra,
    "matrices": matrices,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part once, on small trees; write nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="NAME", help=f"measure these of {', '.join(PARTS)}")
    parser.add_argument("--compare", nargs="+", metavar="THEN", help="a commit or a file; or two, to measure nothing")
    arguments = parser.parse_args()
    compared = [results.read(source) for source in arguments.compare or []]
    if len(compared) > 2:
        parser.error("--compare takes one or two of commits and files")
    now = compared[1] if len(compared) == 2 else measure(arguments.only or list(PARTS), arguments.quick)
    if compared:
        print(results.comparison(compared[0], now))


def measure(names: Sequence[str], quick: bool) -> results.Results:
    """Run parts, and write what each one measured as soon as it is there; return their figures."""
    versions = ", ".join(f"{m.__name__} {m.__version__}" for m in (jax, eqx, optax))
    environment = f"{versions}; Python {platform.python_version()}, {jax.default_backend()}, {os.cpu_count()} cores."
    known = results.read() if results.FILE.exists() else {}
    measured = {}
    for name in names:
        start = time.perf_counter()
        about = str(inspect.getdoc(PARTS[name]))
        measured[name] = results.section(about, PARTS[name](quick), environment)
        print(results.markdown(name, measured[name], environment), end="\n\n", flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        if not quick:
            known |= measured
            results.write({part: known[part] for part in PARTS if part in known})
    return measured


if __name__ == "__main__":
    main()

"""Optimizers of matrices: their steps beside the products in them, and the time to trace and lower a step."""

import gc
import operator
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from instructions import per_call
from measure import interleaved, medians, seconds, step_of, table

import modulax

EVERY = 10  # steps between two improvements of the bases of SOAP


def matrices(quick: bool) -> str:
    """Muon, SOAP and their kin, on matrices alone.

    The first table is the direction of Muon for matrices of one shape: a loop, which is `over=()`, and batches, which
    is the default. The second is ten steps of SOAP, of which one improves the bases, beside the bare products and QR
    decompositions in them. The third is the CPU time to trace and lower a step for 100 matrices of four shapes, and its
    instructions, counted by valgrind without garbage collection; ratios are to AdamW of modulax.
    """
    tables = _newton_schulz(quick), _soap(quick), _lowering(quick)
    return "\n\n".join(tables)


def _newton_schulz(quick: bool) -> str:
    shapes = [(8, 8, 4)] if quick else [(64, 64, 32), (128, 128, 40), (256, 256, 16), (512, 512, 6), (256, 1024, 8)]
    rows = []
    for *shape, count in shapes:
        grads = _random(shape, count)
        runs = []
        for over in ((), None):
            rule = modulax.ScaleByMuon(over=over, weight_dimension_numbers=modulax.MuonDimensionNumbers(0, 1))
            state = rule.init(grads)
            program = jax.jit(rule.update).lower(grads, state).compile()
            runs.append(lambda p=program, g=grads, s=state: p(g, s))
        (loop, batches), (_, ratio) = interleaved(runs, 3 if quick else 40)
        rows.append([_name(shape, count), seconds(loop), seconds(batches), f"{ratio:.2f}"])
    return table(["Newton–Schulz", "loop", "batches", "ratio"], rows)


def _soap(quick: bool) -> str:
    shapes = [(8, 8, 2)] if quick else [(64, 256, 16), (256, 256, 8), (256, 1024, 4)]
    rows = []
    for *shape, count in shapes:
        grads = _random(shape, count)
        rule = modulax.ScaleBySOAP(
            precondition_frequency=EVERY, weight_dimension_numbers=modulax.MuonDimensionNumbers(0, 1)
        )
        _, state = jax.jit(rule.update)(grads, rule.init(grads))  # the first step has eigendecompositions
        bases = [(jnp.linalg.qr(g @ g.T)[0], jnp.linalg.qr(g.T @ g)[0], g @ g.T, g.T @ g, g) for g in grads]
        given = ((_bare, bases), (_steps(rule), state))
        programs = [(jax.jit(f).lower(grads, x).compile(), x) for f, x in given]
        runs = [lambda p=program, g=grads, x=x: p(g, x) for program, x in programs]
        (bare, soap), (_, ratio) = interleaved(runs, 3 if quick else 12)
        rows.append([_name(shape, count), seconds(bare), seconds(soap), f"{ratio:.2f}"])
    return table(["SOAP", "products", "ten steps", "ratio"], rows)


def _steps(rule: modulax.ScaleBySOAP) -> Any:
    def steps(grads: list[jax.Array], state: Any) -> Any:
        def step(carry: Any, i: jax.Array) -> Any:
            return rule.update([g * (1 + i) for g in grads], carry[1]), None

        return jax.lax.scan(step, (grads, state), jnp.arange(EVERY, dtype=jnp.float32))[0]

    return steps


def _bare(grads: list[jax.Array], carry: Any) -> Any:
    """The products of as many steps: six each, and four more and two QR decompositions for new bases."""

    def step(carry: Any, i: jax.Array) -> Any:
        out = []
        for g, (left, right, *_) in zip(grads, carry, strict=True):
            x = g * (1 + i)
            out.append((left, right, x @ x.T, x.T @ x, left @ (left.T @ x @ right) @ right.T))
        return out, None

    out = []
    for left, right, of_rows, of_columns, u in jax.lax.scan(step, carry, jnp.arange(EVERY, dtype=jnp.float32))[0]:
        new_left, _ = jnp.linalg.qr(of_rows @ left)
        new_right, _ = jnp.linalg.qr(of_columns @ right)
        moment = new_left.T @ (left @ u @ right.T) @ new_right
        out.append((new_left, new_right, of_rows, of_columns, moment))
    return out


SHAPES = ((64, 64), (64, 192), (64, 256), (256, 64))
LOWER = """
shapes = {shapes}
params = {{str(i): jax.ShapeDtypeStruct(shapes[i % 4], jnp.float32) for i in range(100)}}
optimizer = {optimizer}(1e-3)
state = jax.eval_shape(optimizer.init, params)
def call():
    jax.clear_caches()
    jax.jit(step_of(optimizer, {library}.apply_updates)).lower(params, state, params)
    return 0
"""


def _lowering(quick: bool) -> str:
    params = {str(i): jax.ShapeDtypeStruct(SHAPES[i % 4], jnp.float32) for i in range(8 if quick else 100)}
    ours = {f"`{name}`": f"modulax.{name}" for name in ("AdamW", "Muon", "SOAP", "Shampoo", "EShampoo", "Kron")}
    ways = ours | {"optax's `adamw`": "optax.adamw", "optax's `muon`": "optax.contrib.muon"}
    libraries: dict[str, Any] = {"modulax": modulax, "optax": optax}
    times: list[list[float]] = [[] for _ in ways]
    for i in range(2 if quick else 6):
        for spent, way in zip(times, ways.values(), strict=True):
            library, _, name = way.partition(".")
            optimizer = operator.attrgetter(name)(libraries[library])(1e-3)
            step = step_of(optimizer, libraries[library].apply_updates)
            state = jax.eval_shape(optimizer.init, params)
            jax.clear_caches()
            gc.collect()
            start = time.process_time()
            jax.jit(step).lower(params, state, params)
            if i:  # the first round warms up
                spent.append(time.process_time() - start)
    found, ratios = medians(times)
    rows = [[name, seconds(t), f"{ratio:.2f}"] for name, t, ratio in zip(ways, found, ratios, strict=True)]
    head = ["optimizer", "trace + lower", "ratio"]
    if not quick:
        calls = (LOWER.format(shapes=SHAPES, optimizer=way, library=way.partition(".")[0]) for way in ways.values())
        counts = [per_call(call, "tree(1)", 3, 1) for call in calls]
        for row, count in zip(rows, counts, strict=True):
            row += [f"{count / 1e6:,.0f} M", f"{count / counts[0]:.2f}"]
        head += ["instructions", "ratio"]
    return table(head, rows)


def _random(shape: Sequence[int], count: int) -> list[jax.Array]:
    return [jax.random.normal(jax.random.key(i), tuple(shape)) for i in range(count)]


def _name(shape: Sequence[int], count: int) -> str:
    return f"{count} of {shape[0]} × {shape[1]}"

"""Laws on compiled programs: entry points, retracing, control flow, donation."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._plugin.trees import leaves_with_paths
from ._case import (
    Case,
    counting_traces,
    expect,
    expect_close,
    expect_same_avals,
    has_numbers,
    map_numbers,
    needs,
    other_value,
    run,
    stack,
)


def law_scan_carries_the_state(case: Case) -> None:
    """`jax.lax.scan` over `update` gives what a Python loop gives."""
    loop, state = run(case)

    def body(state: Any, g: Any) -> tuple[Any, Any]:
        updates, state = case.update(g, state)
        return state, updates

    scanned_state, scanned = jax.lax.scan(body, case.init(), stack(*map(case.updates, range(3))))
    expect_close(scanned, stack(*loop), "scan", case.rtol)
    expect_close(scanned_state, state, "the state after a scan", case.rtol)


def law_both_branches_of_a_cond_may_return_it(case: Case) -> None:
    """A step returns the same types as no step, so that `jax.lax.cond` can choose between them."""
    grads, state = case.updates(), case.init()

    @jax.jit
    def maybe(is_step: Any, grads: Any, state: Any) -> Any:
        return jax.lax.cond(is_step, case.update, lambda g, s: (case.returned(g), s), grads, state)

    expect_close(maybe(True, grads, state), case.update(grads, state), "a step", case.rtol)
    expect_close(maybe(False, grads, state), (case.returned(grads), state), "no step")


def _variants(case: Case, path: str, weight: float) -> dict[str, Any]:
    """The transform with one hyperparameter changed, in every way there is."""
    transform = case.transform
    x = other_value(case.numbers()[path], weight)
    where = transform.addresses()[path]
    return {
        "replaced by a float": transform.replace(**{path: x}),
        "replaced by a NumPy array": transform.replace(**{path: np.asarray(x, np.float32)}),
        "replaced by a JAX array": transform.replace(**{path: jnp.asarray(x, jnp.float32)}),
        "set to a bare float with `tree_at`": eqx.tree_at(where, transform, x),
    }


def law_a_second_step_is_not_traced(case: Case) -> None:
    """The second step runs the compiled program of the first: the new state has the types of the old one.

    A weak type, another dtype or a Python number in the new state causes a retrace.
    """
    grads, state = case.updates(), case.init()
    _, state = jax.block_until_ready(case.update(grads, state))
    with counting_traces() as traces:
        for _ in range(2):
            _, state = case.update(grads, state)
    expect(not traces, f"later steps traced {traces}.")


@needs(has_numbers)
def law_a_changed_number_is_not_traced(case: Case) -> None:
    """Changing a hyperparameter does not retrace `update`, however it is changed.

    Declare hyperparameters with `modulax.number()`; static fields are for what changes the program.
    """
    grads, state = case.updates(), case.init()
    variants = {
        f"`{path}` {how}": transform
        for weight in (0.5, 0.7)
        for path in case.numbers()
        for how, transform in _variants(case, path, weight).items()
    }
    jax.block_until_ready(case.update(grads, state))
    for how, transform in variants.items():
        with counting_traces() as traces:
            case.update(grads, state, transform=transform)
        expect(not traces, f"with {how}, `update` was traced again: {traces}.")


@needs(has_numbers)
def law_a_changed_number_is_not_traced_in_your_own_jit(case: Case) -> None:
    """Changing a hyperparameter does not retrace a jitted function that has the transform as an argument.

    Bare Python floats set with `tree_at` have a weak type, which JAX treats as another type: all of them together cause
    a single retrace.
    """
    traces = 0

    @jax.jit
    def step(transform: Any, grads: Any, state: Any) -> Any:
        nonlocal traces
        traces += 1
        return case.update(grads, state, transform=transform)

    def trace(transform: Any) -> None:
        # Traces as a call would, without compiling: `eval_shape` of a jitted function shares its trace cache.
        nonlocal state
        _, new = jax.eval_shape(step, transform, grads, state)
        state = jtu.tree_map(kept, new, state)

    def kept(new: Any, old: Any) -> Any:
        # A shape does not say in which memory it is, such as that of `Offload`.
        types = [(x.shape, x.dtype, x.weak_type) for x in (new, old)]
        return old if types[0] == types[1] else new

    grads, state = case.updates(), case.init()
    trace(case.transform)
    for path in case.numbers():
        for how, transform in _variants(case, path, 0.5).items():
            if "bare" not in how:
                trace(transform)
                expect(traces == 1, f"with `{path}` {how}, the step was traced again.")
    for weight in (0.5, 0.6):
        trace(map_numbers(lambda x, w=weight: other_value(x, w), case.transform))
    expect(traces <= 2, "bare floats were traced more than once.")


def law_methods_can_be_transformed(case: Case) -> None:
    """`init` and `update` can be passed to `jax.jit`, `jax.eval_shape`, `jax.make_jaxpr` and `jax.vmap`."""
    grads, state = case.updates(), case.init()
    updates, new_state = case.update(grads, state)
    extra = case.extra_for(case.params, grads)
    expect_close(jax.jit(case.transform.init)(case.params), state, "`jax.jit(init)`")
    shapes = jax.eval_shape(case.transform.init, case.params)
    expect_same_avals(shapes, state, "`jax.eval_shape(init, params)`")
    jax.make_jaxpr(case.transform.init)(case.params)
    # `jax.jit` does not accept functions or text as arguments. JAX 0.10 pairs donated buffers with results by shape
    # alone, so that a state in the memory of the host (`Offload`) would be paired with the updates.
    memories = {x.sharding.memory_kind for x in jtu.tree_leaves(state) if isinstance(x, jax.Array)}
    if not extra and "pinned_host" not in memories:
        donated = jtu.tree_map(jnp.copy, state)
        jitted = jax.jit(case.transform.update, donate_argnums=1)
        result = jitted(grads, donated, case.params)
        expect_close(result, (updates, new_state), "`jax.jit(update, donate_argnums=1)`", case.rtol)


def law_update_can_be_vmapped(case: Case) -> None:
    """`jax.vmap(update)` over stacked updates, states and parameters gives stacked steps."""
    n = 3
    params = [jtu.tree_map(lambda p, i=i: np.asarray(p) * p.dtype.type(1 + i), case.params) for i in range(n)]
    states = [case.init(p) for p in params]
    grads = [case.updates(seed) for seed in range(n)]
    loop = []
    for i in range(n):
        _, states[i] = case.update(grads[i], states[i], params[i])
        loop.append(case.update(grads[n - 1 - i], states[i], params[i]))

    mapped = jax.vmap(case.update)(stack(*grads[::-1]), stack(*states), stack(*params))
    expect_close(mapped, stack(*loop), "`jax.vmap(update)`", case.rtol)


def law_update_returns_before_the_result_is_ready(case: Case) -> None:
    """`update` dispatches the computation asynchronously and returns before its result is ready.

    It is called with updates that are still being computed, and must return before they are. Neither inspect a value in
    Python nor use a callback. On a GPU, XLA itself waits for the condition of a `jax.lax.cond` or a `while_loop`, so
    that a transform with one fails there.
    """
    # A GPU is given each iteration by the host, which takes as long as a small product.
    size = 256 if jax.default_backend() == "cpu" else 4096

    @jax.jit
    def late(updates: Any, repetitions: Any) -> Any:
        matrix = jnp.full((size, size), 1e-3)
        work = jax.lax.fori_loop(0, repetitions, lambda _, y: y @ matrix + 1e-3, matrix)
        return jtu.tree_map(lambda x: x + work[0, 0].astype(x.dtype), updates)

    grads, state = case.updates(), case.init()
    jax.block_until_ready(case.update(late(grads, 1), state))
    for repetitions in (30, 300, 3000):  # longer work for a busy machine
        delayed = late(grads, repetitions)
        result = case.update(delayed, state)
        came_first = not any(x.is_ready() for x in jtu.tree_leaves(delayed))
        jax.block_until_ready(result)
        if came_first:
            return
    raise AssertionError("`update` returned only when its result was ready.")


def law_states_can_be_donated(case: Case) -> None:
    """Fresh parameters and state can both be donated, and the transform is usable afterwards.

    A buffer can be donated only once, so two fields of a state must not share an array, nor may a state share one with
    the parameters or the transform. Create each with `jnp.zeros_like` or `jnp.copy`.
    """
    fresh = jtu.tree_map(jnp.copy, case.params)
    state = case.init(fresh)
    owners: dict[int, str] = {}
    trees = (("params", fresh), ("state", state), ("transform", case.transform))
    for root, tree in trees:
        for path, x in leaves_with_paths(tree):
            if isinstance(x, jax.Array):
                other = owners.setdefault(x.unsafe_buffer_pointer(), f"{root}.{path}")
                is_own = other == f"{root}.{path}" or not {root, other.partition(".")[0]} & {"state"}
                expect(is_own, f"`{root}.{path}` and `{other}` are one buffer.")

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = case.update(grads, state, params)
        return jtu.tree_map(lambda p, u: p + u, params, updates), state

    grads = case.updates()
    expected = case.params, case.init()
    for _ in range(2):
        updates, state_after = case.update(grads, expected[1], expected[0])
        expected = jtu.tree_map(lambda p, u: np.asarray(p) + np.asarray(u), expected[0], updates), state_after
    donating = jax.jit(step, donate_argnums=(0, 1))
    moved, state = donating(fresh, state, grads)
    result = donating(moved, state, grads)
    expect_close(result, expected, "with donated buffers", case.rtol)
    fresh, state = jtu.tree_map(jnp.copy, (case.params, case.init()))
    for _ in range(2):
        extra = case.extra_for(fresh, grads)
        fresh, state = case.transform.step(grads, state, fresh, donate=True, **extra)
    expect_close((fresh, state), expected, "`step(donate=True)`", case.rtol)


def law_the_transform_survives_donation(case: Case) -> None:
    """If everything is donated, including the transform, its hyperparameters are still usable afterwards."""
    everything = eqx.filter_jit(
        lambda transform, grads, state: case.update(grads, state, transform=transform),
        donate="all",
    )
    before = {path: np.array(x) for path, x in case.numbers().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of donated buffers that the result can't use
        everything(case.transform, case.updates(), case.init())
    for path, x in case.numbers().items():
        is_alive = not (isinstance(x, jax.Array) and x.is_deleted())
        expect(is_alive and np.array_equal(x, before[path]), f"`{path}` was given away.")
    case.update(case.updates(), case.init())

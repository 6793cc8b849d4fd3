"""Laws on trees: updates have the structure of the input, whatever its leaves are."""

import copy
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .. import apply_updates
from .._plugin.arrays import enable_x64
from .._plugin.states import owners, owning_paths
from .._plugin.trees import leaves_with_paths, named_leaves, trainable
from ..tree import leaf_paths
from ._case import Case, avals, cast, expect, expect_close, expect_finite, expect_same_avals, needs


def _start_and_step(case: Case, params: Any, updates: Any) -> tuple[Any, Any, Any]:
    """Initialize and take one step."""
    state = case.init(params)
    return state, *case.update(updates, state, params)


def _one_step(case: Case, params: Any, updates: Any) -> tuple[Any, Any, Any]:
    """The shapes and dtypes of an initial state, and of the updates and state after one step."""
    return jax.eval_shape(functools.partial(_start_and_step, case), params, case.given(updates))


def law_structure_shapes_and_dtypes_are_kept(case: Case) -> None:
    """Updates keep their structure, shapes and dtypes (except for an `update_dtype`), and so does the state.

    Compute in at least float32 and cast back what is returned or stored; `AbstractLeafwise` does.
    """
    # Float16 is under `law_strict_promotion_is_obeyed`.
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float64, jnp.float8_e4m3fn):
        with enable_x64(dtype == jnp.float64):
            params, name = avals(case.params, dtype), np.dtype(dtype).name
            state, updates, new_state = _one_step(case, params, params)
            expect_same_avals(updates, case.kept(updates, params), f"updates in {name}")
            expect_same_avals(new_state, state, f"the state of parameters in {name}")


def law_updates_keep_their_dtype_beside_other_parameters(case: Case) -> None:
    """If updates and parameters have different dtypes, the updates keep theirs, except for an `update_dtype`."""
    low = avals(case.params, jnp.bfloat16)
    for params, grads in ((avals(case.params), low), (low, avals(case.params))):
        state, updates, new_state = _one_step(case, params, grads)
        expect_same_avals(updates, case.kept(updates, grads), "updates")
        expect_same_avals(new_state, state, "the state")


def law_complex_parameters_work(case: Case) -> None:
    """Complex parameters keep their dtypes and give finite values, or `init` raises an error that names the class.

    Use |g|² for squares. If the algorithm is not defined for complex parameters, declare `needs = ("real",)`.
    """
    params = cast(case.params, jnp.complex64)
    try:
        jax.eval_shape(case.transform.init, params)
    except ValueError as error:
        expect("is not defined for complex parameters" in str(error), f"complex parameters: {error}")
        return
    grads = case.updates(like=params)
    state, updates, new_state = jax.jit(functools.partial(_start_and_step, case))(params, grads)
    expect_same_avals(updates, params, "complex updates")
    expect_same_avals(new_state, state, "the state of complex parameters")
    expect_finite(updates, "complex updates")


def law_state_is_a_module_of_arrays(case: Case) -> None:
    """A state is a Module, or another dataclass registered with JAX, of JAX arrays, none of them empty or weakly typed.

    That holds for weakly typed parameters too, such as `jnp.asarray(0.7)`. Checkpoints drop weak types, so that the
    first step after a restore would be retraced, and they refuse empty arrays. Create counters and scalars with
    `jnp.zeros((), dtype)`; use None for an absent value.
    """
    state = case.init()
    _, new_state = case.update(case.updates(), state)
    weak = jtu.tree_map(lambda p: jnp.broadcast_to(jnp.asarray(0.5), p.shape), case.params)
    of_weak = case.init(weak)
    for name, s in (
        ("`init`", state),
        ("`update`", new_state),
        ("`init`, given parameters of weak type,", of_weak),
    ):
        is_node = dataclasses.is_dataclass(s) and not jtu.all_leaves([s])
        expect(is_node, f"{name} returned a state of type `{type(s).__name__}`.")
        for path, x in leaves_with_paths(s):
            is_fine = isinstance(x, jax.Array) and not x.aval.weak_type and x.size > 0
            expect(is_fine, f"{name} returned a state with {x!r} at `{path}`.")


def law_the_state_says_what_is_like_the_parameters(case: Case) -> None:
    """Each array of a state is at the path of its parameter in a field without default, or in a field declared shared.

    Declare what belongs to all parameters together, such as a counter, with `modulax.shared()`, and a field that holds
    the state of another transform with `modulax.nested()`.
    """
    params = avals(case.params)
    state = jax.eval_shape(case.transform.init, params)
    known = [names for names, _ in named_leaves(params)]
    pieces = zip(owning_paths(state), owners(state, params), named_leaves(state), strict=True)
    for (kind, _), owner, (names, _) in pieces:
        path = ".".join(names)
        expect(
            kind != "params" or owner is not None,
            f"`{path}` is not at the path of a parameter; declare its field with `modulax.shared()`.",
        )
        is_at_a_path = any(names[-len(n) :] == n for n in known if n)
        expect(
            kind != "shared" or not is_at_a_path,
            f"`{path}` is at the path of a parameter; its field must not be shared or have a default.",
        )


def law_absent_leaves_stay_absent(case: Case) -> None:
    """If a parameter is None, its update is None, and the state holds nothing for it."""
    leaves, treedef = jtu.tree_flatten(case.params)
    absent = leaf_paths(case.params)[1::2]
    params = treedef.unflatten([None if i % 2 else x for i, x in enumerate(leaves)])
    state, updates, new_state = _one_step(case, params, params)
    expect_same_avals(updates, params, "updates with absent leaves")
    expect_same_avals(new_state, state, "the state")
    arrays = [p for p in leaf_paths(state) if any(("." + p).endswith("." + a) for a in absent)]
    expect(not arrays, f"the state holds arrays for absent parameters, at {arrays}.")


def law_empty_trees_are_fine(case: Case) -> None:
    """A transform may have nothing to train: `{}`, or a tree in which every leaf is None, with `allow_empty=True`."""
    nothing = jtu.tree_map(lambda _: None, case.params)
    for params in ({}, nothing):
        state, updates, new_state = _one_step(case, params, params)
        expect_same_avals(updates, params, "updates of an empty tree")
        expect_same_avals(new_state, state, "the state of an empty tree")


def law_leaves_without_elements_are_fine(case: Case) -> None:
    """An array of size zero passes through, and the other leaves are transformed as if it were not there."""
    leaves, treedef = jtu.tree_flatten(case.params)
    params = treedef.unflatten([np.zeros((0, 3), np.float32), *leaves[1:]])
    grads = case.updates(like=params)
    state, updates, new_state = jax.jit(functools.partial(_start_and_step, case))(params, grads)
    expect_same_avals(updates, params, "updates")
    expect_same_avals(new_state, state, "the state")
    expect_finite(updates, "updates")


@needs(lambda case: isinstance(case.params, dict))
def law_whole_models_are_fine(case: Case) -> None:
    """`init`, `update` and `step` accept a whole model and transform its floating-point arrays only.

    Functions, strings, flags, None and integer arrays are absent in the state and are returned unchanged.
    """
    others = {
        "activation": jax.nn.relu,
        "flag": True,
        "missing": None,
        "name": "text",
        "rate": 0.5,
        "table": jnp.asarray([0, 1, 2]),
    }
    model = {**case.params, **others}
    pure = trainable(model)
    grads = case.updates(like=pure)
    state = case.init(model)
    expect_same_avals(state, jax.eval_shape(case.transform.init, pure), "the state of a model")
    extra = case.extra_for(pure, grads)
    updates, _ = case.transform.update(grads, state, model, **extra)
    expect_same_avals(updates, pure, "the updates of a model")
    applied = apply_updates(model, updates)
    stepped, _ = case.transform.step(grads, state, model, **extra)
    for new in (applied, stepped):
        expect(
            all(new[k] is others[k] for k in others if k != "table") and np.array_equal(new["table"], others["table"]),
            "leaves of a model that are not parameters did not come back unchanged.",
        )
    expect_close(trainable(stepped), trainable(applied), "`step`, against `update` and apply", case.rtol)
    moved = jtu.tree_map(lambda p, u: np.asarray(p) + np.asarray(u), pure, updates)
    expect_close(trainable(applied), moved, "`apply_updates`", case.rtol)


def law_inputs_are_not_modified(case: Case) -> None:
    """`init` and `update` don't modify their arguments, including NumPy arrays and dicts."""
    params, grads = (jtu.tree_map(np.array, tree) for tree in (case.params, case.updates()))
    before = copy.deepcopy((params, grads))
    state = case.init(params)
    state_before = jtu.tree_map(np.array, state)
    for _ in range(2):
        case.update(grads, state, params)
    expect_close((params, grads), before, "the arguments after an update")
    expect_close(jtu.tree_map(np.array, state), state_before, "the state after an update")


@needs(lambda case: isinstance(case.params, dict) and len(case.params) > 1)
def law_the_order_of_a_dict_does_not_matter(case: Case) -> None:
    """Dicts with equal keys are equal, in whatever order the keys were inserted."""

    def turned(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return {key: turned(tree[key]) for key in reversed(tree)}

    results, updates = [], None
    for order in (lambda tree: tree, turned):
        params = order(case.params)
        state = case.init(params)
        for seed in range(2):
            updates, state = case.update(order(case.updates(seed)), state, params)
        results.append((updates, state))
    mixed = case.update(turned(case.updates()), case.init(), case.params)
    expect_close(results[1], results[0], "the keys in another order")
    expect_close(mixed, case.update(case.updates(), case.init()), "updates in another order")


def law_sharding_is_kept(case: Case) -> None:
    """Updates keep their sharding, and so do parameters that are stepped."""
    devices = np.array(jax.devices()[:2])  # the last axes of small trees are seldom divisible by more
    mesh = jax.sharding.Mesh(devices, ("d",))

    def place(x: jax.Array) -> jax.Array:
        fits = x.ndim > 0 and x.shape[-1] % len(devices) == 0
        axes = [*[None] * (x.ndim - 1), "d"] if fits else []
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)))

    params, grads = (jtu.tree_map(place, tree) for tree in (case.params, case.updates()))
    state = case.init(params)
    for _ in range(2):
        updates, state = case.update(grads, state, params)
        for (path, u), p in zip(leaves_with_paths(updates), jtu.tree_leaves(params), strict=True):
            expect(
                u.sharding.is_equivalent_to(p.sharding, u.ndim),
                f"the update at `{path}` came as {p.sharding} and left as {u.sharding}.",
            )

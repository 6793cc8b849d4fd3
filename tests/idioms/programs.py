"""What programs put around an optimizer: JAX's transformations, schedules, searches, and parameters of every kind."""

import functools
import types
import warnings
from collections import OrderedDict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._table import GRADS, LABELS, MASK, PARAMS, error, idiom, idioms, kinds, take

STACKED = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), (PARAMS, GRADS))


def loss(params: Any) -> Any:
    return sum(jnp.sum(x**2) for x in jax.tree.leaves(params)) / 2


def stepping(o: Any, tx: Any) -> Any:
    def step(carry: Any, _: Any = None) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return (o.apply_updates(params, updates), state), value

    return step


def scanned(o: Any, tx: Any, n: int = 3) -> Any:
    return jax.lax.scan(stepping(o, tx), (PARAMS, tx.init(PARAMS)), None, n)


def mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()[:2]), ("x",))


idioms(
    jit_of_a_partial=lambda o: jax.jit(functools.partial(o.adam(0.1).update, params=PARAMS))(
        GRADS, o.adam(0.1).init(PARAMS)
    ),
    scan=lambda o: jax.jit(lambda: scanned(o, o.sgd(0.1, 0.9)))(),
    cond=lambda o: jax.lax.cond(
        jnp.asarray(True),
        lambda s: o.adam(0.1).update(GRADS, s, PARAMS),
        lambda s: (GRADS, s),
        o.adam(0.1).init(PARAMS),
    ),
    vmap_of_methods=lambda o: jax.vmap(o.adam(0.1).update)(STACKED[1], jax.vmap(o.adam(0.1).init)(STACKED[0])),
    traced_rate=lambda o: jax.jit(lambda rate: take(o.adamw(rate, weight_decay=rate))[0])(0.1),
    gradient_of_the_rate=lambda o: jax.jit(jax.grad(lambda rate: loss(o.apply_updates(PARAMS, take(o.sgd(rate))[0]))))(
        0.1
    ),
    shapes_of_abstract_params=lambda o: jax.tree.map(
        lambda x: x.shape,
        jax.eval_shape(o.adam(0.1).init, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), PARAMS)),
    ),
    compiled_ahead=lambda o: (
        jax.jit(o.adam(0.1).update)
        .lower(GRADS, o.adam(0.1).init(PARAMS), PARAMS)
        .compile()(GRADS, o.adam(0.1).init(PARAMS), PARAMS)
    ),
    inputs_of_a_program=lambda o: len(
        jax.make_jaxpr(o.adam(0.1).update)(GRADS, o.adam(0.1).init(PARAMS), PARAMS).jaxpr.invars
    ),
    without_params=lambda o: o.adam(0.1).update(GRADS, o.adam(0.1).init(PARAMS)),
    params_by_name=lambda o: o.adamw(0.1).update(updates=GRADS, state=o.adamw(0.1).init(PARAMS), params=PARAMS),
    params_as_none=lambda o: o.adam(0.1).update(GRADS, o.adam(0.1).init(params=PARAMS), None),
    missing_params=lambda o: error(lambda: o.add_decayed_weights(0.1).update(GRADS, o.EmptyState())),
)


@idiom
def number_of_compilations(o: Any) -> Any:
    step: Any = jax.jit(o.adam(0.1).update)
    state = o.adam(0.1).init(PARAMS)
    for _ in range(3):
        _, state = step(GRADS, state)
    return step._cache_size()


@idiom
def donated(o: Any) -> Any:
    tx = o.adam(0.1)
    params = jax.tree.map(jnp.copy, PARAMS)
    step = jax.jit(lambda p, s: stepping(o, tx)((p, s))[0], donate_argnums=(0, 1))
    state = jax.tree.map(jnp.copy, tx.init(params))
    old = state[0].mu["w"]
    return step(params, state), old.is_deleted()


@idiom
def shardings_by_prefix(o: Any) -> Any:
    tx = o.adam(0.1)
    everywhere = NamedSharding(mesh(), PartitionSpec())
    step = jax.jit(tx.update, in_shardings=(None, everywhere), out_shardings=(None, everywhere))
    return step(GRADS, tx.init(PARAMS))


@idiom
def shardings_by_class(o: Any) -> Any:
    tx = o.adam(0.1)
    one, cut = (NamedSharding(mesh(), PartitionSpec(*axes)) for axes in ((), ("x",)))
    like = {"b": one, "w": cut}
    state = jax.jit(tx.init, out_shardings=(o.ScaleByAdamState(one, like, like), o.EmptyState()))(PARAMS)
    return [str(x.sharding.spec) for x in jax.tree.leaves(state)]


@idiom
def replicated_over_devices(o: Any) -> Any:
    tx = o.adam(0.1)

    @functools.partial(jax.pmap, axis_name="batch", devices=jax.devices()[:2])
    def step(state: Any, grads: Any) -> Any:
        return tx.update(jax.lax.pmean(grads, "batch"), state)

    state = jax.tree.map(lambda x: jnp.stack([x, x]), tx.init(PARAMS))
    return step(state, STACKED[1])


@idiom
def shard_map(o: Any) -> Any:
    tx = o.adam(0.1)

    def step(state: Any, grads: Any) -> Any:
        return tx.update(jax.tree.map(lambda g: jax.lax.pmean(g[0], "x"), grads), state)

    specs = PartitionSpec(), PartitionSpec("x")
    mapped = jax.shard_map(step, mesh=mesh(), in_specs=specs, out_specs=PartitionSpec())
    return jax.jit(mapped)(tx.init(PARAMS), STACKED[1])


# Schedules.
idioms(
    schedule_times_a_number=lambda o: take(o.sgd(lambda count: 2.0 * o.linear_schedule(0.1, 0.0, 10)(count)))[0],
    schedule_as_a_key=lambda o: {(s := o.constant_schedule(0.1)): 1}[s],
    schedule_or_number=lambda o: [callable(x) for x in (0.1, o.linear_schedule(0.1, 0.0, 10), o.sgd(0.1))],
    rate_as_numpy=lambda o: take(o.adam(np.float32(0.1)))[0],
    rate_as_an_integer=lambda o: take(o.sgd(1))[0],
    rate_by_scale_by_schedule=lambda o: take(
        o.chain(o.scale_by_adam(), o.scale_by_schedule(lambda count: -0.1 * count))
    ),
    rate_logged=lambda o: o.linear_schedule(0.1, 0.0, 10)(take(o.sgd(o.linear_schedule(0.1, 0.0, 10)))[1][1].count),
    rate_without_sign=lambda o: take(o.scale_by_learning_rate(0.1, flip_sign=False))[0],
)


# Searches, and other ways to step.
@idiom
def backtracking(o: Any) -> Any:
    tx = o.chain(o.sgd(1.0), o.scale_by_backtracking_linesearch(4))
    extra = {"value": loss(PARAMS), "grad": PARAMS, "value_fn": loss}
    return take(tx, n=1, grads=PARAMS, **extra)


@idiom
def schedule_free_evaluation(o: Any) -> Any:
    tx = o.contrib.schedule_free(o.sgd(0.1), learning_rate=0.1)
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(2):
        updates, state = tx.update(GRADS, state, params)
        params = o.apply_updates(params, updates)
    return params, o.contrib.schedule_free_eval_params(state, params)


idioms(
    lookahead_by_name=lambda o: o.lookahead(o.sgd(0.1), 2, 0.5).update(
        updates=GRADS,
        state=o.lookahead(o.sgd(0.1), 2, 0.5).init(params=o.LookaheadParams(PARAMS, PARAMS)),
        params=o.LookaheadParams(PARAMS, PARAMS),
    ),
    lookahead=lambda o: take(o.lookahead(o.sgd(0.1), 2, 0.5), params=o.LookaheadParams.init_synced(PARAMS)),
    own_function_of_updates=lambda o: take(o.stateless(lambda u, p: jax.tree.map(jnp.sign, u))),
)


# Parameters of every kind.
class Layer(NamedTuple):
    """Parameters in a named tuple."""

    w: Any
    b: Any


class Linear(eqx.Module):
    """Parameters in a Module of Equinox, with a function."""

    weight: jax.Array
    bias: jax.Array
    activation: Any = jax.nn.relu


def on(tx: Any, params: Any, n: int = 2) -> Any:
    """Steps whose gradients are the parameters."""
    return take(tx, params=params, grads=params, n=n)


idioms(
    params_in_a_named_tuple=lambda o: on(o.adam(0.1), Layer(PARAMS["w"], PARAMS["b"])),
    params_in_an_equinox_module=lambda o: (
        on(o.adam(0.1), eqx.filter(Linear(PARAMS["w"], PARAMS["b"]), eqx.is_array))[0].weight
    ),
    number_applied=lambda o: o.apply_updates(0.5, on(o.sgd(0.1), 0.5)[0]),
    updates_of_numbers=lambda o: o.apply_updates({"a": jnp.asarray(1.0)}, {"a": 0.5}),
    updates_of_integers=lambda o: o.apply_updates({"a": jnp.asarray(1.0)}, {"a": jnp.asarray(2)}),
    updates_in_half_precision=lambda o: o.apply_updates(PARAMS["b"].astype(jnp.bfloat16), GRADS["b"]),
    gradients_of_numbers=lambda o: take(o.sgd(0.1), params={"a": 1.0}, grads={"a": 1.0})[0],
    ordered_params=lambda o: on(o.sgd(0.1, 0.9), OrderedDict(z=PARAMS["b"], a=PARAMS["w"])),
    whole_numbers_applied=lambda o: o.apply_updates(
        {"a": 2, "b": jnp.arange(3)}, {"a": jnp.asarray(1.7), "b": jnp.ones(3) * 1.6}
    ),
    whole_number=lambda o: o.adam(0.1).init({"a": 1, "b": 2}),
    integers_in_adam=lambda o: o.adam(0.1).init(jnp.arange(3)),
    numpy_arrays=lambda o: on(o.adam(0.1), jax.tree.map(np.asarray, PARAMS)),
    no_params=lambda o: on(o.adam(0.1), {}),
    none_among_params=lambda o: on(o.adam(0.1), {"b": PARAMS["b"], "n": None}),
    none_as_params=lambda o: kinds(o.sgd(0.1).init(None)),
    complex_params=lambda o: o.adam(0.1).init(jnp.asarray([1.0 + 2.0j, -1.0j])),
    half_precision=lambda o: on(o.sgd(0.1, 0.9), jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS))[1],
    half_precision_with_moments=lambda o: on(o.adam(0.1, mu_dtype=jnp.float32), PARAMS["b"].astype(jnp.bfloat16), n=1)[
        0
    ],
    moments_in_half_precision=lambda o: on(o.adam(0.1, mu_dtype="bfloat16"), PARAMS)[1][0].mu,
    params_of_another_type=lambda o: error(lambda: o.adam(0.1).init({"a": "text"})),
    updates_of_a_part=lambda o: take(o.scale(2.0), grads={"w": GRADS["w"]}),
    moments_of_another_shape=lambda o: o.trace(0.9).update(
        jax.tree.map(jnp.ravel, GRADS), o.trace(0.9).init(jax.tree.map(jnp.ravel, PARAMS)), PARAMS
    ),
    updates_that_are_none=lambda o: o.apply_updates({"a": PARAMS["b"], "n": None}, {"a": GRADS["b"], "n": None}),
)


# Masks and labels.
idioms(
    mask_that_is_no_tree=lambda o: take(o.adamw(0.1, weight_decay=0.1, mask=types.MappingProxyType(MASK))),
    mask_of_numpy=lambda o: take(o.masked(o.sgd(0.1), {"b": np.bool_(False), "w": np.bool_(True)})),
    mask_by_prefix=lambda o: take(
        o.masked(o.sgd(0.1), {"a": True, "b": False}), params={"a": PARAMS, "b": PARAMS}, grads={"a": GRADS, "b": GRADS}
    )[0],
    mask_for_everything=lambda o: take(o.masked(o.sgd(0.1), True)),
    labels_of_integers=lambda o: take(o.partition({0: o.sgd(0.1), 1: o.adam(0.1)}, {"b": 0, "w": 1}))[0],
    labels_by_prefix=lambda o: take(
        o.multi_transform({"a": o.sgd(0.1), "b": o.set_to_zero()}, {"x": "a", "y": "b"}),
        params={"x": PARAMS, "y": PARAMS},
        grads={"x": GRADS, "y": GRADS},
    )[0],
    labels_without_members=lambda o: take(
        o.multi_transform({"slow": o.sgd(0.1), "fast": o.sgd(0.2), "more": o.adam(0.1)}, LABELS)
    )[0],
    labels_without_a_transformation=lambda o: error(
        lambda: o.multi_transform({"slow": o.sgd(0.1)}, LABELS).init(PARAMS)
    ),
    groups_in_groups=lambda o: take(
        o.multi_transform(
            {
                "fast": o.multi_transform({"x": o.sgd(0.1)}, lambda p: jax.tree.map(lambda _: "x", p)),
                "slow": o.sgd(0.2),
            },
            LABELS,
        )
    )[0],
)


@idiom
def rate_that_a_trainer_logs(o: Any) -> Any:
    """As Levanter builds optimizers: groups with a momentum of its own, schedules that end with the run, masks."""

    def momentum() -> Any:
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            state = jax.tree.map(lambda m, g: 0.9 * m + g, state, updates)
            return state, state

        return o.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)

    def optimizer(learning_rate: Any, adam_lr: Any) -> Any:
        decay = o.add_decayed_weights(0.1, lambda tree: {"b": False, "w": True})
        groups = {
            "fast": o.chain(momentum(), decay, o.scale(-learning_rate)),
            "slow": o.chain(o.clip_by_global_norm(1.0), o.scale_by_adam(), decay, o.scale(-adam_lr)),
        }
        return o.multi_transform(groups, lambda tree: {"b": "slow", "w": "fast"})

    def schedule(peak: float) -> Any:
        pieces = [o.linear_schedule(0.0, peak, 2), o.cosine_decay_schedule(peak, 4, 0.1)]
        with warnings.catch_warnings(action="ignore"):
            return o.join_schedules(pieces, [2, 6])

    tx = o.inject_hyperparams(optimizer)(learning_rate=schedule(0.1), adam_lr=schedule(0.01))
    updates, state = take(tx, n=3)
    return updates, {name: state.hyperparams[name] for name in ("learning_rate", "adam_lr")}


@idiom
def moments_by_their_class(o: Any) -> Any:
    """As jax_privacy asks which optimizer is adaptive, and MaxText writes moments back."""
    tx = o.chain(o.clip(1.0), o.inject_hyperparams(o.adamw)(0.1))
    updates, state = take(tx)
    is_adam = lambda x: isinstance(x, o.ScaleByAdamState)  # noqa: E731
    (found,) = filter(is_adam, jax.tree.leaves(state, is_leaf=is_adam))
    state = jax.tree.map(lambda x: x._replace(mu=x.nu) if is_adam(x) else x, state, is_leaf=is_adam)
    return updates, found.nu, take(tx, state)

"""What programs do with states: NamedTuples in tuples, read by class, by name, by place and by path."""

import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax as real
from jax.sharding import PartitionSpec

from ._table import GRADS, LABELS, MASK, PARAMS, error, idiom, idioms, names, paths, take

TU = jax.tree_util
TUPLE: Any = tuple  # whose fields no type checker looks for


def adam(o: Any) -> Any:
    """The state of Adam after two steps."""
    return take(o.adam(0.1))[1]


def scheduled(o: Any) -> Any:
    return o.adamw(o.linear_schedule(0.1, 0.0, 10), weight_decay=0.1, mask=MASK)


def injected(o: Any) -> Any:
    return o.inject_hyperparams(o.adam)(learning_rate=0.1)


def grouped(o: Any) -> Any:
    return o.multi_transform({"slow": o.sgd(0.1), "fast": o.adam(0.1)}, LABELS)


def instances(x: Any, cls: Any) -> int:
    return sum(isinstance(y, cls) for y in jax.tree.leaves(x, is_leaf=lambda y: isinstance(y, cls)))


idioms(
    masked_nodes=lambda o: instances(grouped(o).init(PARAMS), o.MaskedNode),
    none_is_a_masked_node=lambda o: (isinstance(None, o.MaskedNode), o.MaskedNode() is not None, o.MaskedNode() == ()),
    state_of_injection=lambda o: isinstance(
        injected(o).init(PARAMS), (o.InjectHyperparamsState, o.InjectStatefulHyperparamsState)
    ),
    old_state_of_injection=lambda o: isinstance(injected(o).init(PARAMS), o.InjectHyperparamsState),
    states_by_class_in_a_tree=lambda o: [
        instances(x, cls)
        for x in (adam(o), scheduled(o).init(PARAMS), injected(o).init(PARAMS))
        for cls in (o.ScaleByAdamState, o.EmptyState, o.ScaleByScheduleState)
    ],
    state_equal_to_another=lambda o: o.sgd(0.1).init(PARAMS) == o.sgd(0.2).init(PARAMS),
    repr_of_a_state=lambda o: repr(o.sgd(0.1).init(PARAMS)),
    pickled_state_taken_back=lambda o: take(o.adam(0.1), pickle.loads(pickle.dumps(jax.device_get(adam(o))))),
    structure_of_two_optimizers=lambda o: (
        jax.tree.structure(o.adam(0.1).init(PARAMS)) == jax.tree.structure(o.adam(0.2, b1=0.5).init(PARAMS))
    ),
    state_through_numpy=lambda o: take(o.adam(0.1), jax.tree.map(np.asarray, adam(o))),
    states_of_groups=lambda o: take(grouped(o))[1],
    state_of_lookahead=lambda o: (
        o.lookahead(o.adam(0.1), 2, 0.5).init(o.LookaheadParams.init_synced(PARAMS)).fast_state[0].count
    ),
)


# Built by hand and given back.
idioms(
    state_of_new_moments=lambda o: take(
        o.adam(0.1), (o.ScaleByAdamState(jnp.asarray(3, jnp.int32), mu=GRADS, nu=GRADS), o.EmptyState())
    ),
    list_as_a_state=lambda o: take(o.adam(0.1), (*list(adam(o))[:1], o.EmptyState())),
    state_of_groups_rebuilt=lambda o: take(grouped(o), o.MultiTransformState(dict(take(grouped(o))[1].inner_states))),
    state_of_a_chain_extended=lambda o: take(
        o.chain(o.adam(0.1), o.scale_by_schedule(lambda count: 0.5)),
        (adam(o), o.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))),
    ),
    state_of_another_optimizer=lambda o: take(o.adamw(0.1), (adam(o)[0], o.EmptyState(), o.EmptyState())),
    state_of_real_injection=lambda o: take(injected(o), take(injected(real))[1]),
    empty_tuple_as_a_state=lambda o: take(o.scale(2.0), ())[0],
)


@idiom
def neurons_reset_in_moments(o: Any) -> Any:
    """As Dopamine does."""
    tx = o.chain(o.clip(1.0), o.adam(0.1))
    state = list(take(tx)[1])
    inner = list(state[1])
    mu = {**inner[0].mu, "w": inner[0].mu["w"].at[0].set(0.0)}
    inner[0] = o.ScaleByAdamState(inner[0].count, mu=mu, nu=inner[0].nu)
    return take(tx, (state[0], tuple(inner)))


@idiom
def rate_found_in_a_tuple(o: Any) -> Any:
    """As Brax does."""
    tx = o.chain(o.clip_by_global_norm(1.0), injected(o))
    state = tx.init(PARAMS)
    while isinstance(state, TUPLE) and not hasattr(state, "hyperparams"):
        state = state[1]
    return state.hyperparams["learning_rate"]


# Paths.
def rules(state: Any, *patterns: str) -> list[list[str]]:
    found = [f"opt_state/{name}" for name in names(state)]
    return [[name for name in found if re.search(pattern, name)] for pattern in patterns]


idioms(
    paths_of_groups=lambda o: paths(grouped(o).init(PARAMS)),
    kinds_of_keys=lambda o: [[type(k).__name__ for k in path] for path, _ in TU.tree_leaves_with_path(adam(o))],
    anchored_rules=lambda o: rules(adam(o), r"^opt_state/0/mu/", r"^opt_state/0/(mu|nu)/w$", r"count$"),
)


# Found by name.
idioms(
    got_class=lambda o: o.tree_utils.tree_get(take(scheduled(o))[1], "ScaleByScheduleState").count,
    got_rate=lambda o: o.tree.get(take(injected(o))[1], "learning_rate"),
    got_in_a_dict=lambda o: o.tree.get({"a": adam(o), "b": {"lr": 0.1}}, "lr"),
    set_rate=lambda o: take(injected(o), o.tree_utils.tree_set(injected(o).init(PARAMS), learning_rate=0.5)),
    mapped_params_with_specs=lambda o: o.tree.map_params(
        o.adam(0.1),
        lambda x, spec: str(spec),
        adam(o),
        {"b": PartitionSpec(), "w": PartitionSpec("x")},
        transform_non_params=lambda x: "replicated",
    ),
    mapped_params_of_init=lambda o: o.tree.map_params(scheduled(o).init, lambda x: x + 1, take(scheduled(o))[1]),
    mapped_params_of_shapes=lambda o: o.tree.map_params(
        scheduled(o),
        lambda x: x.shape,
        jax.eval_shape(scheduled(o).init, PARAMS),
        transform_non_params=lambda x: "number",
    ),
    mapped_params_of_groups=lambda o: o.tree.map_params(grouped(o), lambda x: x + 1, grouped(o).init(PARAMS)),
    mapped_params_of_injection=lambda o: o.tree.map_params(
        injected(o), lambda x: "p", injected(o).init(PARAMS), transform_non_params=lambda x: "n"
    ),
)


# Injected hyperparameters.
@idiom
def rate_set_in_a_chain(o: Any) -> Any:
    tx = o.chain(o.clip(1.0), injected(o))
    state = tx.init(PARAMS)
    state[1].hyperparams["learning_rate"] = state[1].hyperparams["learning_rate"] * 0.1
    return take(tx, state)


@idiom
def rate_updated_by_a_dict(o: Any) -> Any:
    state = injected(o).init(PARAMS)
    state.hyperparams.update(learning_rate=jnp.asarray(0.2), b1=jnp.asarray(0.5))
    return take(injected(o), state), "b1" in state.hyperparams, sorted(state.hyperparams)


@idiom
def rate_set_in_a_program(o: Any) -> Any:
    tx = injected(o)

    @jax.jit
    def step(state: Any, rate: Any) -> Any:
        state.hyperparams["learning_rate"] = rate
        return tx.update(GRADS, state, PARAMS)

    return step(tx.init(PARAMS), 0.5), step(tx.init(PARAMS), 0.25)[0]


@idiom
def rate_of_a_closure(o: Any) -> Any:
    @o.inject_hyperparams
    def make(learning_rate: Any, bound: float) -> Any:
        return o.chain(o.clip_by_global_norm(bound), o.sgd(learning_rate))

    tx = make(learning_rate=0.1, bound=1.0)
    state = tx.init(PARAMS)
    state.hyperparams["bound"] = jnp.asarray(2.0)
    return take(tx, state)


idioms(
    injected_numpy_number=lambda o: take(
        injected(o), o.tree.set(injected(o).init(PARAMS), learning_rate=np.float32(0.3)), n=1
    ),
    injected_unknown_name=lambda o: error(
        lambda: take(injected(o), injected(o).init(PARAMS)._replace(hyperparams={"learning_rate": 0.1, "nope": 1.0}))
    ),
    injected_schedule=lambda o: take(o.inject_hyperparams(o.sgd)(o.linear_schedule(0.1, 0.0, 10))),
    injected_partial=lambda o: take(o.inject_hyperparams(o.adam, static_args=("b1", "eps"))(learning_rate=0.1)),
    injected_dtype=lambda o: o.inject_hyperparams(o.sgd, hyperparam_dtype=jnp.bfloat16)(0.1).init(PARAMS).hyperparams,
    injected_mask=lambda o: take(o.inject_hyperparams(o.adamw)(0.1, weight_decay=0.1, mask=MASK))[0],
    injected_whole_number=lambda o: o.inject_hyperparams(o.sgd)(1).init(PARAMS),
    injected_in_groups=lambda o: take(o.multi_transform({"slow": injected(o), "fast": o.sgd(0.1)}, LABELS))[1],
    injected_group=lambda o: take(
        o.inject_hyperparams(lambda a, b: o.multi_transform({"slow": o.sgd(a), "fast": o.sgd(b)}, LABELS))(a=0.1, b=0.2)
    ),
    injected_states=lambda o: take(o.inject_hyperparams(o.sgd)(o.linear_schedule(0.1, 0.0, 10)))[1].hyperparams_states,
)

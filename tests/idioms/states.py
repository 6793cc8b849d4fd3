"""What programs do with states: NamedTuples in tuples, read by class, by name, by place and by path."""

import copy
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax as real
from jax.sharding import PartitionSpec

from ._table import GRADS, LABELS, MASK, PARAMS, error, idiom, idioms, kinds, names, paths, take

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
    state_of_adam=lambda o: isinstance(adam(o)[0], o.ScaleByAdamState),
    empty_state=lambda o: [isinstance(x, o.EmptyState) for x in adam(o)],
    masked_state=lambda o: [isinstance(x, o.MaskedState) for x in scheduled(o).init(PARAMS)],
    masked_nodes=lambda o: instances(grouped(o).init(PARAMS), o.MaskedNode),
    none_is_a_masked_node=lambda o: (isinstance(None, o.MaskedNode), o.MaskedNode() is not None, o.MaskedNode() == ()),
    state_of_trace=lambda o: isinstance(o.sgd(0.1, momentum=0.9).init(PARAMS)[0], o.TraceState),
    state_of_injection=lambda o: isinstance(
        injected(o).init(PARAMS), (o.InjectHyperparamsState, o.InjectStatefulHyperparamsState)
    ),
    old_state_of_injection=lambda o: isinstance(injected(o).init(PARAMS), o.InjectHyperparamsState),
    state_of_multi_steps=lambda o: isinstance(o.MultiSteps(o.sgd(0.1), 2).init(PARAMS), o.MultiStepsState),
    state_of_groups=lambda o: [
        isinstance(grouped(o).init(PARAMS), cls) for cls in (o.MultiTransformState, o.transforms.PartitionState)
    ],
    state_of_a_schedule=lambda o: [isinstance(x, o.ScaleByScheduleState) for x in scheduled(o).init(PARAMS)],
    states_by_class_in_a_tree=lambda o: [
        instances(x, cls)
        for x in (adam(o), scheduled(o).init(PARAMS), injected(o).init(PARAMS))
        for cls in (o.ScaleByAdamState, o.EmptyState, o.ScaleByScheduleState)
    ],
    class_in_a_dict=lambda o: [
        {o.ScaleByAdamState: "adam", o.EmptyState: "empty"}.get(type(x), "other") for x in scheduled(o).init(PARAMS)
    ],
    class_in_a_set=lambda o: [type(x) in {o.ScaleByAdamState, o.TraceState} for x in adam(o)],
    names_of_classes=lambda o: [kinds(x.init(PARAMS)) for x in (o.adam(0.1), scheduled(o), o.lion(0.1), o.sgd(0.1))],
    iterated_state=lambda o: [type(x).__name__ for x in scheduled(o).init(PARAMS)],
    state_is_a_tuple=lambda o: [
        isinstance(x, tuple) for x in (adam(o), adam(o)[0], injected(o).init(PARAMS), o.EmptyState())
    ],
    state_is_a_tuple_with_as_dict=lambda o: [hasattr(x, "_asdict") for x in (adam(o), *adam(o))],
    length_of_a_state=lambda o: [len(x) for x in (adam(o), adam(o)[0], o.EmptyState(), injected(o).init(PARAMS))],
    slices_of_a_state=lambda o: (adam(o)[1:], adam(o)[-1], adam(o)[0][1:], adam(o)[:1]),
    replaced_count=lambda o: adam(o)[0]._replace(count=jnp.zeros([], jnp.int32)),
    replaced_name_that_is_wrong=lambda o: error(lambda: adam(o)[0]._replace(step=1)),
    state_as_a_dict=lambda o: adam(o)[0]._asdict(),
    fields_of_a_state=lambda o: [
        x._fields
        for x in (
            adam(o)[0],
            injected(o).init(PARAMS),
            o.MultiSteps(o.sgd(0.1), 2).init(PARAMS),
            grouped(o).init(PARAMS),
        )
    ],
    fields_of_classes=lambda o: [
        getattr(o, name)._fields
        for name in ("ScaleByAdamState", "TraceState", "EmaState", "FactoredState", "ScaleByRmsState", "MaskedState")
    ],
    unpacked_state=lambda o: (lambda count, mu, nu: [count, mu, nu])(*adam(o)[0]),
    state_by_position=lambda o: o.ScaleByAdamState(jnp.zeros([], jnp.int32), PARAMS, GRADS).nu,
    state_equal_to_another=lambda o: o.sgd(0.1).init(PARAMS) == o.sgd(0.2).init(PARAMS),
    empty_states_are_equal=lambda o: (o.EmptyState() == o.EmptyState(), o.EmptyState() == (), hash(o.EmptyState())),
    truth_of_a_state=lambda o: [bool(x) for x in (adam(o), *adam(o), o.sgd(0.1).init(PARAMS))],
    repr_of_a_state=lambda o: repr(o.sgd(0.1).init(PARAMS)),
    pickled_state=lambda o: pickle.loads(pickle.dumps(adam(o))),
    pickled_state_taken_back=lambda o: take(o.adam(0.1), pickle.loads(pickle.dumps(jax.device_get(adam(o))))),
    copied_state=lambda o: (copy.deepcopy(adam(o)), copy.copy(adam(o))),
    numbers_of_leaves=lambda o: [len(jax.tree.leaves(x.init(PARAMS))) for x in (o.adam(0.1), o.sgd(0.1), scheduled(o))],
    structure_of_a_step=lambda o: jax.tree.structure(adam(o)) == jax.tree.structure(o.adam(0.1).init(PARAMS)),
    structure_of_two_optimizers=lambda o: (
        jax.tree.structure(o.adam(0.1).init(PARAMS)) == jax.tree.structure(o.adam(0.2, b1=0.5).init(PARAMS))
    ),
    zeros_like_a_state=lambda o: jax.tree.map(jnp.zeros_like, adam(o)),
    mean_of_states=lambda o: jax.tree.map(lambda a, b: (a + b) / 2, adam(o), o.adam(0.1).init(PARAMS)),
    bytes_of_a_state=lambda o: sum(x.nbytes for x in jax.tree.leaves(adam(o))),
    state_on_the_host=lambda o: jax.tree.map(np.asarray, jax.device_get(adam(o)[0])),
    state_through_numpy=lambda o: take(o.adam(0.1), jax.tree.map(np.asarray, adam(o))),
    state_cast_to_half=lambda o: jax.tree.map(lambda x: x.astype(jnp.bfloat16), adam(o)[0].mu),
    state_unflattened=lambda o: take(o.adam(0.1), jax.tree.unflatten(*reversed(jax.tree.flatten(adam(o))))),
    mu_by_place=lambda o: adam(o)[0].mu["w"],
    mu_in_a_chain=lambda o: take(o.chain(o.clip(1.0), o.adam(0.1)))[1][1][0].mu,
    count_of_a_schedule=lambda o: take(scheduled(o))[1][-1].count,
    count_in_a_chain=lambda o: o.chain(o.clip(1.0), scheduled(o)).init(PARAMS)[1][2].count,
    step_by_attribute=lambda o: next(x.count for x in take(scheduled(o))[1] if hasattr(x, "count")),
    state_of_a_group=lambda o: take(grouped(o))[1].inner_states["fast"].inner_state[0].mu,
    states_of_groups=lambda o: take(grouped(o))[1],
    state_of_muon=lambda o: o.contrib.muon(0.1).init(PARAMS).inner_states["muon"].inner_state[0].mu,
    state_of_masked=lambda o: take(o.masked(o.adam(0.1), MASK))[1].inner_state[0].nu,
    state_of_apply_if_finite=lambda o: take(o.apply_if_finite(o.sgd(0.1), 2), n=1)[1].notfinite_count,
    state_of_named_chain=lambda o: take(o.named_chain(("a", o.clip(1.0)), ("b", o.adam(0.1))))[1]["b"][0].count,
    state_of_multi_steps_inside=lambda o: o.MultiSteps(o.adam(0.1), 2).init(PARAMS).inner_opt_state[0].count,
    state_of_lookahead=lambda o: (
        o.lookahead(o.adam(0.1), 2, 0.5).init(o.LookaheadParams.init_synced(PARAMS)).fast_state[0].count
    ),
    state_of_adafactor=lambda o: o.adafactor(0.1).init(PARAMS)[0],
    state_of_ema=lambda o: take(o.ema(0.9))[1].ema,
)


# Built by hand and given back.
idioms(
    new_state_in_a_tuple=lambda o: take(o.adam(0.1), (adam(o)[0]._replace(count=jnp.asarray(7)), *adam(o)[1:])),
    state_of_new_moments=lambda o: take(
        o.adam(0.1), (o.ScaleByAdamState(jnp.asarray(3, jnp.int32), mu=GRADS, nu=GRADS), o.EmptyState())
    ),
    list_as_a_state=lambda o: take(o.adam(0.1), (*list(adam(o))[:1], o.EmptyState())),
    state_mapped=lambda o: take(o.adam(0.1), jax.tree.map(lambda x: x * 0, adam(o))),
    state_mapped_by_class=lambda o: jax.tree.map(
        lambda x: x._replace(mu=GRADS) if isinstance(x, o.ScaleByAdamState) else x,
        adam(o),
        is_leaf=lambda x: isinstance(x, o.ScaleByAdamState),
    ),
    state_of_groups_rebuilt=lambda o: take(grouped(o), o.MultiTransformState(dict(take(grouped(o))[1].inner_states))),
    state_of_a_chain_extended=lambda o: take(
        o.chain(o.adam(0.1), o.scale_by_schedule(lambda count: 0.5)),
        (adam(o), o.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))),
    ),
    state_of_another_optimizer=lambda o: take(o.adamw(0.1), (adam(o)[0], o.EmptyState(), o.EmptyState())),
    state_of_the_real_optax=lambda o: take(o.adam(0.1), adam(real)),
    state_of_real_groups=lambda o: take(grouped(o), take(grouped(real))[1])[0],
    state_of_real_injection=lambda o: take(injected(o), take(injected(real))[1]),
    state_of_real_multi_steps=lambda o: take(
        o.MultiSteps(o.sgd(0.1), 2), take(real.MultiSteps(real.sgd(0.1), 2), n=1)[1], n=1
    )[0],
    state_assigned=lambda o: error(lambda: setattr(adam(o)[0], "count", 3)),
    state_joined=lambda o: kinds(adam(o)[:1] + adam(o)[1:]),
    empty_tuple_as_a_state=lambda o: take(o.scale(2.0), ())[0],
    class_made_from_a_dict=lambda o: o.ScaleByAdamState(**adam(o)[0]._asdict()),
    class_made_from_an_iterable=lambda o: o.ScaleByAdamState._make(adam(o)[0]),
    type_of_a_state_called=lambda o: type(adam(o)[0])(*adam(o)[0]),
)


@idiom
def matched_state(o: Any) -> Any:
    match adam(o):
        case (o.ScaleByAdamState(count=count, mu=mu), *rest):
            return count, mu, len(rest)
    return "no match"


@idiom
def matched_by_position(o: Any) -> Any:
    match adam(o)[0]:
        case o.ScaleByAdamState(count, _, nu):
            return count, nu
    return "no match"


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


@idiom
def axes_of_a_state(o: Any) -> Any:
    """As T5X does: rules by class, for all states that are named tuples."""
    rules = {o.ScaleByAdamState: {"count": None, "mu": "like", "nu": "like"}, o.TraceState: {"trace": "like"}}

    def axes(x: Any) -> Any:
        if isinstance(x, TUPLE) and hasattr(x, "_asdict"):
            if type(x) in rules:
                return {name: MASK if rule == "like" else None for name, rule in rules[type(x)].items()}
            return {name: axes(y) for name, y in x._asdict().items()}
        return [axes(y) for y in x] if isinstance(x, tuple) else None

    return [axes(tx.init(PARAMS)) for tx in (o.adam(0.1), o.sgd(0.1, 0.9), injected(o), scheduled(o))]


# Paths.
def rules(state: Any, *patterns: str) -> list[list[str]]:
    found = [f"opt_state/{name}" for name in names(state)]
    return [[name for name in found if re.search(pattern, name)] for pattern in patterns]


idioms(
    paths_of_adam=lambda o: paths(adam(o)),
    paths_of_a_schedule=lambda o: paths(scheduled(o).init(PARAMS)),
    paths_of_injection=lambda o: names(injected(o).init(PARAMS)),
    paths_of_groups=lambda o: paths(grouped(o).init(PARAMS)),
    paths_of_multi_steps=lambda o: names(o.MultiSteps(o.adam(0.1), 2).init(PARAMS)),
    paths_of_named_chain=lambda o: names(o.named_chain(("a", o.adam(0.1)), ("b", o.trace(0.9))).init(PARAMS)),
    paths_of_muon=lambda o: names(o.contrib.muon(0.1).init(PARAMS)),
    kinds_of_keys=lambda o: [[type(k).__name__ for k in path] for path, _ in TU.tree_leaves_with_path(adam(o))],
    anchored_rules=lambda o: rules(adam(o), r"^opt_state/0/mu/", r"^opt_state/0/(mu|nu)/w$", r"count$"),
    anchored_rules_in_a_chain=lambda o: rules(
        o.chain(o.clip(1.0), scheduled(o)).init(PARAMS), r"1/0/(mu|nu)", "1/2/count"
    ),
    unanchored_rules=lambda o: rules(injected(o).init(PARAMS), r"mu/w", r"hyperparams/learning_rate"),
    specs_by_rule=lambda o: TU.tree_map_with_path(
        lambda path, x: str(PartitionSpec("x") if "mu" in TU.keystr(path) and x.ndim == 2 else PartitionSpec()), adam(o)
    ),
    names_of_keys=lambda o: [
        getattr(path[-1], "key", getattr(path[-1], "name", None)) for path, _ in TU.tree_leaves_with_path(adam(o))
    ],
    renamed_by_path=lambda o: (
        TU.tree_map_with_path(lambda path, x: x + 1 if ".nu" in TU.keystr(path) else x, adam(o))[0].nu
    ),
    flat_dict_by_path=lambda o: {TU.keystr(path): x for path, x in TU.tree_leaves_with_path(scheduled(o).init(PARAMS))},
    paths_with_leaves_of_none=lambda o: [
        TU.keystr(path)
        for path, _ in TU.tree_leaves_with_path(grouped(o).init(PARAMS), is_leaf=lambda x: isinstance(x, o.MaskedNode))
    ],
)


# Found by name.
idioms(
    got_count=lambda o: o.tree_utils.tree_get(adam(o), "count"),
    got_mu=lambda o: o.tree.get(take(o.chain(o.clip(1.0), o.adam(0.1)))[1], "mu"),
    got_class=lambda o: o.tree_utils.tree_get(take(scheduled(o))[1], "ScaleByScheduleState").count,
    got_class_of_adam=lambda o: o.tree.get(take(scheduled(o))[1], "ScaleByAdamState"),
    got_nothing=lambda o: (o.tree.get(adam(o), "nope"), o.tree.get(adam(o), "nope", 7)),
    got_too_many=lambda o: error(lambda: o.tree.get(take(scheduled(o))[1], "count")),
    got_by_filter=lambda o: o.tree.get(
        take(scheduled(o))[1], "count", filtering=lambda path, x: path[-1].tuple_name == "ScaleByAdamState"
    ),
    got_rate=lambda o: o.tree.get(take(injected(o))[1], "learning_rate"),
    got_all=lambda o: [
        (list(map(str, path)), x) for path, x in o.tree.get_all_with_path(take(scheduled(o))[1], "count")
    ],
    got_in_a_dict=lambda o: o.tree.get({"a": adam(o), "b": {"lr": 0.1}}, "lr"),
    set_count=lambda o: o.tree.set(adam(o), count=jnp.asarray(5)),
    set_rate=lambda o: take(injected(o), o.tree_utils.tree_set(injected(o).init(PARAMS), learning_rate=0.5)),
    set_moments=lambda o: take(o.adam(0.1), o.tree.set(adam(o), mu=GRADS, nu=PARAMS))[1],
    set_by_filter=lambda o: o.tree.set(
        take(scheduled(o))[1], lambda path, x: path[-1].tuple_name == "ScaleByScheduleState", count=jnp.asarray(9)
    ),
    set_nothing=lambda o: error(lambda: o.tree.set(adam(o), nope=1.0)),
    mapped_params=lambda o: o.tree_utils.tree_map_params(o.adam(0.1), lambda x: x * 2, adam(o)),
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
def rate_set_in_the_state(o: Any) -> Any:
    state = injected(o).init(PARAMS)
    state.hyperparams["learning_rate"] = 0.5
    return take(injected(o), state, n=1)


@idiom
def rate_set_to_an_array(o: Any) -> Any:
    state = take(injected(o))[1]
    state.hyperparams["learning_rate"] = jnp.asarray(0.5)
    return take(injected(o), state)


@idiom
def rate_set_in_a_chain(o: Any) -> Any:
    tx = o.chain(o.clip(1.0), injected(o))
    state = tx.init(PARAMS)
    state[1].hyperparams["learning_rate"] = state[1].hyperparams["learning_rate"] * 0.1
    return take(tx, state)


@idiom
def rate_replaced(o: Any) -> Any:
    state = injected(o).init(PARAMS)
    return take(injected(o), state._replace(hyperparams={**state.hyperparams, "learning_rate": jnp.asarray(0.5)}))


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
    injected_by_position=lambda o: take(o.inject_hyperparams(o.sgd)(0.1)),
    injected_numpy_number=lambda o: take(
        injected(o), o.tree.set(injected(o).init(PARAMS), learning_rate=np.float32(0.3)), n=1
    ),
    injected_unknown_name=lambda o: error(
        lambda: take(injected(o), injected(o).init(PARAMS)._replace(hyperparams={"learning_rate": 0.1, "nope": 1.0}))
    ),
    injected_names=lambda o: sorted(o.inject_hyperparams(o.adamw)(0.1).init(PARAMS).hyperparams),
    injected_schedule=lambda o: take(o.inject_hyperparams(o.sgd)(o.linear_schedule(0.1, 0.0, 10))),
    injected_lambda=lambda o: take(o.inject_hyperparams(lambda rate: o.sgd(rate))(rate=0.1)),
    injected_partial=lambda o: take(o.inject_hyperparams(o.adam, static_args=("b1", "eps"))(learning_rate=0.1)),
    injected_static=lambda o: sorted(o.inject_hyperparams(o.adam, "b1")(0.1).init(PARAMS).hyperparams),
    injected_dtype=lambda o: o.inject_hyperparams(o.sgd, hyperparam_dtype=jnp.bfloat16)(0.1).init(PARAMS).hyperparams,
    injected_mask=lambda o: take(o.inject_hyperparams(o.adamw)(0.1, weight_decay=0.1, mask=MASK))[0],
    injected_array=lambda o: take(o.inject_hyperparams(o.sgd)(jnp.asarray(0.1)))[1],
    injected_whole_number=lambda o: o.inject_hyperparams(o.sgd)(1).init(PARAMS),
    injected_wrong_static=lambda o: error(lambda: o.inject_hyperparams(o.sgd, static_args="nope")),
    injected_in_groups=lambda o: take(o.multi_transform({"slow": injected(o), "fast": o.sgd(0.1)}, LABELS))[1],
    injected_in_multi_steps=lambda o: o.MultiSteps(injected(o), 2).init(PARAMS).inner_opt_state.hyperparams,
    injected_group=lambda o: take(
        o.inject_hyperparams(lambda a, b: o.multi_transform({"slow": o.sgd(a), "fast": o.sgd(b)}, LABELS))(a=0.1, b=0.2)
    ),
    injected_states=lambda o: take(o.inject_hyperparams(o.sgd)(o.linear_schedule(0.1, 0.0, 10)))[1].hyperparams_states,
    injected_state_by_name=lambda o: o.tree.set(injected(o).init(PARAMS), learning_rate=jnp.asarray(0.3)).hyperparams,
)

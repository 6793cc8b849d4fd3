"""What programs do with a transformation itself: a pair of functions, in their own classes, in containers."""

# pyright: reportInvalidTypeForm=false

import copy
import dataclasses
import functools
import inspect
import pickle
import types
import typing
import warnings
from typing import Any, NamedTuple
from unittest import mock

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import optax as real
from beartype import beartype

from ._table import GRADS, LABELS, MASK, PARAMS, error, idiom, idioms, kinds, take

# Classes and tuples.
idioms(
    is_a_transformation=lambda o: [
        isinstance(x, o.GradientTransformation)
        for x in (o.adam(0.1), o.chain(o.clip(1.0)), o.MultiSteps(o.sgd(0.1), 2), o.constant_schedule(1.0), o.adam)
    ],
    takes_extra_arguments=lambda o: [
        isinstance(x, o.GradientTransformationExtraArgs)
        for x in (o.adam(0.1), o.chain(o.clip(1.0)), o.GradientTransformation(*o.sgd(0.1)), o.lbfgs())
    ],
    gains_extra_arguments=lambda o: isinstance(
        o.with_extra_args_support(o.GradientTransformation(*o.sgd(0.1))), o.GradientTransformationExtraArgs
    ),
    a_tuple_of_functions_is_none=lambda o: isinstance(tuple(o.sgd(0.1)), o.GradientTransformation),
    transformation_is_a_tuple=lambda o: isinstance(o.sgd(0.1), tuple),
    kinds_are_subclasses=lambda o: [
        issubclass(o.GradientTransformationExtraArgs, o.GradientTransformation),
        issubclass(o.GradientTransformation, tuple),
        issubclass(o.GradientTransformation, o.GradientTransformationExtraArgs),
    ],
    fields_of_a_transformation=lambda o: (o.GradientTransformation._fields, o.adam(0.1)._fields, len(o.adam(0.1))),
    transformation_as_a_dict=lambda o: [(name, callable(f)) for name, f in o.adam(0.1)._asdict().items()],
    parts_of_a_transformation=lambda o: (
        (tx := o.adam(0.1)) and (tx[0] is tx.init, tx[-1] is tx.update, tx[:1] == (tx.init,), list(tx) == [*tx])
    ),
    zip_of_transformations=lambda o: [len(fs) for fs in zip(o.adam(0.1), o.sgd(0.1), strict=True)],
    functions_by_name=lambda o: [list(inspect.signature(f).parameters) for f in (o.adam(0.1).init, o.MultiSteps)],
    parameters_of_update=lambda o: list(inspect.signature(o.adam(0.1).update).parameters)[:3],
    equal_to_itself=lambda o: ((tx := o.adam(0.1)) == tx) and o.adam(0.1) != o.sgd(0.1) and tx != (1, 2),
    equal_to_its_functions=lambda o: (tx := o.adam(0.1)) == o.GradientTransformationExtraArgs(*tx) == tuple(tx),
    in_a_set=lambda o: len({tx := o.adam(0.1), tx, o.sgd(0.1)}),
    key_of_a_dict=lambda o: {(tx := o.adam(0.1)): "a", o.sgd(0.1): "b"}[tx],
    copies=lambda o: [take(f(o.adam(0.1)))[0] for f in (copy.copy, copy.deepcopy)],
    true_in_a_condition=lambda o: bool(o.sgd(0.1)) and (None or o.sgd(0.1)) is not None,
    any_leaves_of_functions=lambda o: all(map(callable, jax.tree.leaves(o.adam(0.1)))),
    count_of_leaves=lambda o: [len(jax.tree.leaves(tx)) for tx in (o.adam(0.1), o.chain(o.clip(1.0), o.sgd(0.1)))],
    pickled_transformation=lambda o: take(pickle.loads(pickle.dumps(o.adam(0.1))))[0],
    pickled_schedule=lambda o: pickle.loads(pickle.dumps(o.cosine_decay_schedule(0.1, 10)))(3),
    pickled_function=lambda o: pickle.loads(pickle.dumps(o.adam)) is o.adam,
    cloudpickled_transformation=lambda o: take(cloudpickle.loads(cloudpickle.dumps(o.adam(0.1)))),
    functions_of_a_partial=lambda o: take(functools.partial(o.adam, b1=0.8)(0.1)),
    function_by_its_name=lambda o: take(getattr(o, "adam")(**{"learning_rate": 0.1})),  # noqa: B009, PIE804
    registry_of_functions=lambda o: take({"adam": o.adam, "sgd": o.sgd}["adam"](0.1))[1],
    arguments_filtered_by_signature=lambda o: [
        name for name in ("b1", "momentum", "nesterov") if name in inspect.signature(o.sgd).parameters
    ],
    defaults_by_signature=lambda o: inspect.signature(o.adam).parameters["b2"].default,
    identity_and_set_to_zero=lambda o: [take(x) for x in (o.identity(), o.set_to_zero())],
    plain_pair=lambda o: take(o.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))),
    pair_by_name=lambda o: take(o.GradientTransformation(update=lambda u, s, p=None: (u, s), init=lambda p: None)),
    functions_rebuilt=lambda o: take(o.GradientTransformation(o.adam(0.1).init, o.adam(0.1).update)),
)


@idiom
def unpacked(o: Any) -> Any:
    init, update = o.adam(0.1)
    return update(GRADS, init(PARAMS), PARAMS)


@idiom
def replaced_update(o: Any) -> Any:
    tx = o.adam(0.1)

    def halved(updates: Any, state: Any, params: Any = None) -> Any:
        updates, state = tx.update(updates, state, params)
        return jax.tree.map(lambda u: u / 2, updates), state

    return take(tx._replace(update=halved))


@idiom
def replaced_init(o: Any) -> Any:
    tx = o.adam(0.1)
    return tx._replace(init=lambda params: tx.init(params)[:1]).init(PARAMS)


@idiom
def static_argument(o: Any) -> Any:
    step: Any = jax.jit(lambda tx, params: tx.update(GRADS, tx.init(params), params), static_argnums=0)
    tx = o.adam(0.1)
    return step(tx, PARAMS), step(tx, PARAMS)[0], step._cache_size()


@idiom
def static_argument_with_an_array_as_rate(o: Any) -> Any:
    step = jax.jit(lambda params, tx: tx.update(GRADS, tx.init(params), params), static_argnames="tx")
    return step(PARAMS, tx=o.adam(jnp.asarray(0.1)))


@idiom
def cached_factory(o: Any) -> Any:
    made = []

    @functools.lru_cache
    def step_of(tx: Any) -> Any:
        made.append(tx)
        return jax.jit(tx.update)

    tx = o.adam(0.1)
    return step_of(tx)(GRADS, tx.init(PARAMS), PARAMS), step_of(tx) is step_of(tx), len(made)


@idiom
def cached_in_two_places(o: Any) -> Any:
    """optax's are equal only to themselves, ours by their values."""
    return hash(o.adam(0.1)) == hash(o.adam(0.1)), o.adam(0.1) == o.adam(0.1)


@idiom
def field_of_a_dataclass(o: Any) -> Any:
    @dataclasses.dataclass(frozen=True)
    class Config:
        tx: Any
        rate: float = 0.1

    config = Config(o.adam(0.1))
    return take(config.tx), hash(config) == hash(Config(config.tx)), len(dataclasses.astuple(config))


@idiom
def field_of_a_registered_dataclass(o: Any) -> Any:
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["state"], meta_fields=["tx"])
    @dataclasses.dataclass
    class Trainer:
        state: Any
        tx: Any

    trainer = Trainer((tx := o.adam(0.1)).init(PARAMS), tx)
    return jax.jit(lambda t: Trainer(t.tx.update(GRADS, t.state, PARAMS)[1], t.tx))(trainer).state


@idiom
def field_of_an_equinox_module(o: Any) -> Any:
    class Agent(eqx.Module):
        weight: jax.Array
        tx: Any

        def __call__(self) -> Any:
            return jnp.sum(self.weight**2)

    agent = Agent(PARAMS["b"], o.adam(0.1))
    grads = eqx.filter_grad(lambda model: model())(agent)
    updates, _ = agent.tx.update(grads, agent.tx.init(eqx.filter(agent, eqx.is_array)))
    return len(jax.tree.leaves(eqx.filter(agent, eqx.is_array))), grads.weight, updates.weight


@idiom
def static_field_of_an_equinox_module(o: Any) -> Any:
    class Trainer(eqx.Module):
        state: Any
        tx: Any = eqx.field(static=True)

    trainer = Trainer((tx := o.adam(0.1)).init(PARAMS), tx)
    return eqx.filter_jit(lambda t: t.tx.update(GRADS, t.state, PARAMS))(trainer)


@idiom
def annotations(o: Any) -> Any:
    class Config(NamedTuple):
        tx: o.GradientTransformation | None = None
        extra: o.GradientTransformationExtraArgs | o.MultiSteps | None = None
        schedule: o.Schedule | float = 0.1

    def f(tx: o.GradientTransformation, state: o.OptState, params: o.Params, rate: o.ScalarOrSchedule) -> o.Updates:
        del rate
        return tx.update(GRADS, state, params)[0]

    tx = o.adam(0.1)
    members = [x.__name__ for x in typing.get_args(typing.get_type_hints(Config)["extra"])]
    return (
        f(tx, tx.init(PARAMS), PARAMS, 0.1),
        Config(tx).schedule,
        members,
        isinstance(tx, typing.Optional[o.GradientTransformation]),  # noqa: UP045
    )


@idiom
def annotations_that_are_checked(o: Any) -> Any:
    @beartype
    def f(tx: o.GradientTransformation, rate: o.ScalarOrSchedule) -> o.GradientTransformationExtraArgs:
        del rate
        return tx

    return take(f(o.adam(0.1), 0.1))[0], error(lambda: f(o.adam, 0.1)), error(lambda: f(o.scale(1.0).update, 0.1))


@idiom
def type_hints_of_a_function(o: Any) -> Any:
    return "learning_rate" in typing.get_type_hints(o.adam)


@idiom
def subclass_of_the_pair(o: Any) -> Any:
    class Named(o.GradientTransformation):
        def describe(self) -> str:
            return f"named {len(self)}"

    tx = Named(*o.adam(0.1))
    others = [isinstance(x, Named) for x in (tx, o.sgd(0.1))]
    return tx.describe(), others, isinstance(tx, o.GradientTransformation), type(tx).__name__, take(o.chain(tx))


@idiom
def subclass_with_extra_arguments(o: Any) -> Any:
    class Scaled(o.GradientTransformationExtraArgs):
        @classmethod
        def make(cls) -> Any:
            def update(updates: Any, state: Any, params: Any = None, *, by: Any = 1.0, **extra: Any) -> Any:
                del params, extra
                return jax.tree.map(lambda u: u * by, updates), state

            return cls(lambda params: o.EmptyState(), update)

    tx = o.chain(Scaled.make(), o.scale(-1.0))
    return take(tx, by=2.0), issubclass(Scaled, o.GradientTransformation)


@idiom
def own_class_of_a_named_tuple(o: Any) -> Any:
    class State(NamedTuple):
        count: Any
        inner: Any

    class Logged(NamedTuple):
        init: Any
        update: Any
        name: str = "logged"

    inner = o.adam(0.1)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        updates, new = inner.update(updates, state.inner, params)
        return updates, State(state.count + 1, new)

    return take(o.chain(o.clip(1.0), Logged(lambda p: State(0, inner.init(p)), update)))


class Duck:
    """Two methods and nothing else."""

    def init(self, params: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, params)

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        del params
        state = jax.tree.map(jnp.add, state, updates)
        return state, state


@dataclasses.dataclass
class DuckData:
    """A dataclass with the two functions."""

    init: Any = Duck().init
    update: Any = Duck().update


class DuckTuple(NamedTuple):
    """A named tuple with the two functions."""

    init: Any = Duck().init
    update: Any = Duck().update


idioms(
    chain_of_a_class=lambda o: take(o.chain(Duck(), o.scale(-1.0))),
    chain_of_a_dataclass=lambda o: take(o.chain(DuckData(), o.scale(-1.0))),
    chain_of_a_named_tuple=lambda o: take(o.chain(DuckTuple(), o.scale(-1.0))),
    chain_of_a_namespace=lambda o: take(
        o.chain(types.SimpleNamespace(init=Duck().init, update=Duck().update), o.scale(-1.0))
    ),
    chain_of_a_module=lambda o: take(o.chain(mock.Mock(init=Duck().init, update=Duck().update), o.scale(-1.0)))[0],
    multi_steps_of_a_class=lambda o: take(o.MultiSteps(Duck(), 2), n=1),
    masked_class=lambda o: take(o.masked(Duck(), MASK)),
    real_groups=lambda o: take(o.multi_transform({"slow": real.adam(0.1), "fast": real.sgd(0.1, 0.9)}, LABELS)),
    partition_of_a_class=lambda o: take(o.multi_transform({"slow": Duck(), "fast": o.sgd(0.1)}, LABELS)),
    apply_if_finite_of_a_class=lambda o: kinds(o.apply_if_finite(Duck(), 3).init(PARAMS)),
    chain_of_a_list=lambda o: take(o.chain(*[o.clip(1.0), o.adam(0.1)])),
    chain_of_conditions=lambda o: take(
        o.chain(o.clip(1.0) if PARAMS else o.identity(), o.add_decayed_weights(0.0) if not PARAMS else o.identity())
    ),
    chain_in_a_chain=lambda o: kinds(o.chain(o.chain(o.clip(1.0), o.scale_by_adam()), o.scale(1.0)).init(PARAMS)),
    named_chain=lambda o: take(o.named_chain(("clip", o.clip(1.0)), ("adam", o.adam(0.1)))),
    real_transform_in_a_chain=lambda o: take(o.chain(real.clip_by_global_norm(1.0), o.adam(0.1))),
    chain_of_the_real_optax=lambda o: take(real.chain(o.clip_by_global_norm(1.0), o.adam(0.1))),
    real_multi_steps=lambda o: take(real.MultiSteps(o.adam(0.1), 2), n=1),
    real_injection=lambda o: take(real.inject_hyperparams(o.adam)(learning_rate=0.1))[0],
    real_partition=lambda o: take(real.multi_transform({"slow": o.sgd(0.1), "fast": real.sgd(0.2)}, LABELS)),
    real_mask=lambda o: take(real.masked(o.sgd(0.1), MASK)),
    multi_steps_in_a_chain=lambda o: take(o.chain(o.clip(1.0), o.MultiSteps(o.sgd(0.1), 2)), n=1),
    multi_steps_in_multi_steps=lambda o: take(o.MultiSteps(o.MultiSteps(o.sgd(0.1), 2), 1), n=2),
    multi_steps_as_a_transformation=lambda o: take(o.MultiSteps(o.sgd(0.1), 2).gradient_transformation(), n=1),
    multi_steps_has_updated=lambda o: [
        (ms := o.MultiSteps(o.sgd(0.1), 2)) and bool(ms.has_updated(take(ms, n=n)[1])) for n in (1, 2)
    ],
    multi_steps_scheduled=lambda o: take(o.MultiSteps(o.sgd(0.1), lambda count: jnp.where(count < 1, 1, 2)), n=2),
    multi_steps_skipping=lambda o: take(
        o.MultiSteps(o.sgd(0.1), 2, should_skip_update_fn=o.skip_not_finite),
        grads=jax.tree.map(lambda g: g * jnp.inf, GRADS),
    )[1],
    multi_steps_by_attributes=lambda o: (
        (ms := o.MultiSteps(o.sgd(0.1), 2)) and isinstance(ms.inner_opt, o.GradientTransformation)
    ),
)


@idiom
def subclass_of_multi_steps(o: Any) -> Any:
    class Counting(o.MultiSteps):
        calls = 0

        def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            self.calls += 1
            return super().update(updates, state, params, **extra)

    steps = Counting(o.sgd(0.1), every_k_schedule=2)
    return take(steps), steps.calls, isinstance(steps, o.MultiSteps)


@idiom
def own_wrapper_as_a_function(o: Any) -> Any:
    def skip_small(inner: Any, bound: float) -> Any:
        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            new_updates, new_state = inner.update(updates, state, params, **extra)
            large = o.global_norm(updates) > bound
            new_state = jax.tree.map(lambda a, b: jnp.where(large, a, b), new_state, state)
            return jax.tree.map(lambda u: jnp.where(large, u, jnp.zeros_like(u)), new_updates), new_state

        return o.GradientTransformation(inner.init, update)

    with warnings.catch_warnings(action="ignore"):
        return take(skip_small(o.adam(0.1), 0.5)), take(skip_small(o.adam(0.1), 50.0))


@idiom
def own_wrapper_with_extra_arguments(o: Any) -> Any:
    seen = []

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params
        seen.append(sorted(extra))
        return updates, state

    tx = o.chain(o.GradientTransformationExtraArgs(lambda p: o.EmptyState(), update), o.sgd(0.1))
    return take(tx, value=1.0, loss="text"), seen


@idiom
def extra_arguments_that_nothing_takes(o: Any) -> Any:
    plain = o.GradientTransformation(lambda p: o.EmptyState(), lambda u, s, p=None: (u, s))
    return take(o.chain(plain, o.adam(0.1)), value=1.0)[0], error(lambda: take(plain, value=1.0))


@idiom
def errors_in_own_functions(o: Any) -> Any:
    broken = o.GradientTransformation(lambda p: o.EmptyState(), lambda u, s, p=None: (u.nope, s))
    wrong = o.GradientTransformation(lambda p: o.EmptyState(), lambda u, s, p=None: 1 + "a")  # pyright: ignore
    return error(lambda: take(broken)), error(lambda: take(o.chain(broken))), error(lambda: take(wrong))


@idiom
def state_of_numbers(o: Any) -> Any:
    tx = o.GradientTransformation(lambda p: {"n": 0, "name": None}, lambda u, s, p=None: (u, {**s, "n": s["n"] + 1}))
    return take(tx)[1], take(o.chain(tx, o.scale(1.0)))[1]

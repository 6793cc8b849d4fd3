"""What programs do with a transformation itself: a pair of functions, in their own classes, in containers."""

# pyright: reportInvalidTypeForm=false

import copy
import inspect
import pickle
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
    functions_by_name=lambda o: [list(inspect.signature(f).parameters) for f in (o.adam(0.1).init, o.MultiSteps)],
    parameters_of_update=lambda o: list(inspect.signature(o.adam(0.1).update).parameters)[:3],
    equal_to_its_functions=lambda o: (tx := o.adam(0.1)) == o.GradientTransformationExtraArgs(*tx) == tuple(tx),
    copies=lambda o: [take(f(o.adam(0.1)))[0] for f in (copy.copy, copy.deepcopy)],
    count_of_leaves=lambda o: [len(jax.tree.leaves(tx)) for tx in (o.adam(0.1), o.chain(o.clip(1.0), o.sgd(0.1)))],
    pickled_transformation=lambda o: take(pickle.loads(pickle.dumps(o.adam(0.1))))[0],
    pickled_schedule=lambda o: pickle.loads(pickle.dumps(o.cosine_decay_schedule(0.1, 10)))(3),
    cloudpickled_transformation=lambda o: take(cloudpickle.loads(cloudpickle.dumps(o.adam(0.1)))),
    plain_pair=lambda o: take(o.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))),
)


@idiom
def replaced_update(o: Any) -> Any:
    tx = o.adam(0.1)

    def halved(updates: Any, state: Any, params: Any = None) -> Any:
        updates, state = tx.update(updates, state, params)
        return jax.tree.map(lambda u: u / 2, updates), state

    return take(tx._replace(update=halved))


@idiom
def cached_in_two_places(o: Any) -> Any:
    """optax's are equal only to themselves, ours by their values."""
    return hash(o.adam(0.1)) == hash(o.adam(0.1)), o.adam(0.1) == o.adam(0.1)


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


idioms(
    chain_of_a_class=lambda o: take(o.chain(Duck(), o.scale(-1.0))),
    chain_of_a_module=lambda o: take(o.chain(mock.Mock(init=Duck().init, update=Duck().update), o.scale(-1.0)))[0],
    multi_steps_of_a_class=lambda o: take(o.MultiSteps(Duck(), 2), n=1),
    masked_class=lambda o: take(o.masked(Duck(), MASK)),
    real_groups=lambda o: take(o.multi_transform({"slow": real.adam(0.1), "fast": real.sgd(0.1, 0.9)}, LABELS)),
    apply_if_finite_of_a_class=lambda o: kinds(o.apply_if_finite(Duck(), 3).init(PARAMS)),
    chain_in_a_chain=lambda o: kinds(o.chain(o.chain(o.clip(1.0), o.scale_by_adam()), o.scale(1.0)).init(PARAMS)),
    real_transform_in_a_chain=lambda o: take(o.chain(real.clip_by_global_norm(1.0), o.adam(0.1))),
    chain_of_the_real_optax=lambda o: take(real.chain(o.clip_by_global_norm(1.0), o.adam(0.1))),
    real_multi_steps=lambda o: take(real.MultiSteps(o.adam(0.1), 2), n=1),
    real_injection=lambda o: take(real.inject_hyperparams(o.adam)(learning_rate=0.1))[0],
    real_mask=lambda o: take(real.masked(o.sgd(0.1), MASK)),
    multi_steps_in_a_chain=lambda o: take(o.chain(o.clip(1.0), o.MultiSteps(o.sgd(0.1), 2)), n=1),
    multi_steps_scheduled=lambda o: take(o.MultiSteps(o.sgd(0.1), lambda count: jnp.where(count < 1, 1, 2)), n=2),
    multi_steps_skipping=lambda o: take(
        o.MultiSteps(o.sgd(0.1), 2, should_skip_update_fn=o.skip_not_finite),
        grads=jax.tree.map(lambda g: g * jnp.inf, GRADS),
    )[1],
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
def extra_arguments_that_nothing_takes(o: Any) -> Any:
    plain = o.GradientTransformation(lambda p: o.EmptyState(), lambda u, s, p=None: (u, s))
    return take(o.chain(plain, o.adam(0.1)), value=1.0)[0], error(lambda: take(plain, value=1.0))

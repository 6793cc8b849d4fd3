"""Functions of optax that take other arguments than the classes here, or do more than construct one."""

import functools
import inspect
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .. import (
    Adadelta,
    AddNoise,
    DifferentiallyPrivateAggregate,
    Flatten,
    HutchinsonDiagonal,
    Identity,
    Injected,
    Masked,
    NoisySGD,
    Partition,
    ScaleByAdadelta,
    ScaleByAdam,
    ScaleByOptimisticGradient,
    SetToZero,
    Stateless,
    inject_hyperparams as _inject,
    selective_transform as _selective_transform,
    value_and_grad_from_state as _value_and_grad_from_state,
)
from .._plugin.messages import listing, suggestion
from .._plugin.transforms import everything_in, in_dtypes_of
from .._plugin.trees import trainable
from ..authoring import AddDecayedWeights, Chain, ScaleByLearningRate
from ..losses import dice_loss as _dice_loss
from ..tree import norm
from ._around_pairs import AsPython, beside_pairs, flattened_pair, holds_pair, masked_pair, partition_pair
from ._layouts import Form, rule_from_optax
from ._masks import as_groups, as_mask
from ._named_chain import NamedChain
from ._states import EmptyState, is_named
from ._transformations import making, native, with_extra_args_support
from ._trees import tree_get

Tx = Any


def adadelta(learning_rate=None, rho=0.9, eps=1e-6, weight_decay=0.0, weight_decay_mask=None) -> Tx:
    if learning_rate is None:  # neither a learning rate nor a change of the sign
        return Chain(AddDecayedWeights(weight_decay, as_mask(weight_decay_mask)), ScaleByAdadelta(rho, eps))
    return Adadelta(learning_rate, rho, eps, weight_decay, as_mask(weight_decay_mask))


def add_noise(eta, gamma, key=None, *, seed=None) -> Tx:
    return AddNoise(eta, gamma, _key("add_noise", key, seed))


def chain(*args) -> Tx:
    made = Chain(*args)
    return Chain(**beside_pairs(made.parts)) if holds_pair(made) else made


@functools.wraps(_dice_loss, ("__doc__",))
def dice_loss(predictions, targets, **options) -> jax.Array:
    has_classes = np.ndim(predictions) >= np.ndim(targets) and np.shape(predictions)[-1:] != (1,)
    is_checked = not options.get("apply_softmax", True) and has_classes and not isinstance(predictions, Tracer)
    if is_checked and not np.allclose(np.sum(predictions, axis=-1), 1, atol=1e-5):
        raise ValueError(
            "`dice_loss(apply_softmax=False)` needs valid probability distributions, which add up to 1 along the last "
            "axis. For independent probabilities, use `modulax.losses.dice_loss`."
        )
    return _dice_loss(predictions, targets, **options)


def differentially_private_aggregate(l2_norm_clip, noise_multiplier, key=None, *, seed=None) -> Tx:
    key = _key("differentially_private_aggregate", key, seed)
    return DifferentiallyPrivateAggregate(l2_norm_clip, noise_multiplier, key)


def flatten(inner) -> Tx:
    return flattened_pair(with_extra_args_support(inner)) if holds_pair(inner) else Flatten(inner)


def freeze(mask) -> Tx:
    return Masked(SetToZero(), as_mask(mask))  # whose state is optax's


def global_norm(updates) -> jax.Array:
    return norm(updates)


def hutchinson_estimator_diag_hessian(random_seed=None) -> Tx:
    return HutchinsonDiagonal(0 if random_seed is None else random_seed)


def init_empty_state(params) -> EmptyState:
    del params
    return EmptyState()


def inject_hyperparams(inner_factory, static_args=(), hyperparam_dtype=None) -> Any:
    parameters = inspect.signature(inner_factory).parameters
    names = (static_args,) if isinstance(static_args, str) else tuple(static_args)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if unknown := [name for name in names if name not in parameters and not takes_any]:
        raise ValueError(
            f"`inject_hyperparams(static_args=...)`: the function has no argument `{unknown[0]}`."
            f"{suggestion(unknown[0], list(parameters))} It has {listing(parameters)}."
        )
    if not _constructs(inner_factory):

        @functools.wraps(inner_factory)
        def factory(*args: Any, **kwargs: Any) -> Any:
            return native(inner_factory(*args, **kwargs))

        injected = _inject(factory, static_args, hyperparam_dtype)

        def make_of_function(*args: Any, **kwargs: Any) -> Tx:
            made = injected(*args, **kwargs)
            return AsPython(made) if any(map(holds_pair, everything_in(made))) else made

        return making(functools.update_wrapper(make_of_function, inner_factory, updated=()))

    # The hyperparameters are the fields of what is constructed.
    def make(*args: Any, **kwargs: Any) -> Tx:
        return Injected(native(inner_factory(*args, **kwargs)), static_args, hyperparam_dtype)

    return making(functools.update_wrapper(make, inner_factory, updated=()))


def masked(inner, mask, *, mask_compatible_extra_args=False) -> Tx:
    if holds_pair(inner):
        return masked_pair(with_extra_args_support(inner), mask, mask_compatible_extra_args)
    return Masked(inner, as_mask(mask))  # which always masks extra arguments that are like the parameters


def named_chain(*args) -> Tx:
    names = [name for name, _ in args]
    if len(set(names)) < len(names):
        raise ValueError(f"`optax.named_chain` needs a name for each transformation, each once, got {names}.")
    made = NamedChain(Chain(**beside_pairs({name: native(x) for name, x in args})))
    return AsPython(made) if holds_pair(made) else made


def noisy_sgd(learning_rate, eta=0.01, gamma=0.55, key=None, *, seed=None) -> Tx:
    return NoisySGD(learning_rate, eta, gamma, _key("noisy_sgd", key, seed))


def optimistic_adam(
    learning_rate, optimism=None, b1=0.9, b2=0.999, eps=1e-8, eps_root=0.0, mu_dtype=None, *, nesterov=True
) -> Tx:
    warnings.warn(
        "`optax.optimistic_adam` is deprecated: use `optimistic_adam_v2` instead.", DeprecationWarning, stacklevel=3
    )
    if callable(learning_rate):
        raise ValueError("`optax.optimistic_adam` takes no schedule: write `optax.optimistic_adam_v2`.")
    return Chain(
        ScaleByAdam(b1, b2, eps, eps_root=eps_root, mu_dtype=mu_dtype, nesterov=nesterov),
        ScaleByOptimisticGradient(learning_rate, learning_rate if optimism is None else optimism),
        ScaleByLearningRate(1.0),
    )


def partition(transforms, param_labels, *, mask_compatible_extra_args=False) -> Tx:
    if any(map(holds_pair, transforms.values())):
        pairs = {label: with_extra_args_support(x) for label, x in transforms.items()}
        return partition_pair(pairs, param_labels, mask_compatible_extra_args)
    return Partition(transforms, as_groups(param_labels))


def scale_by_learning_rate(learning_rate=None, *, flip_sign=True) -> Tx:
    return Identity() if learning_rate is None else ScaleByLearningRate(learning_rate, flip_sign=flip_sign)


def schedule_free_eval_params(state, params) -> Any:
    owner = "schedule_free_eval_params"
    found = [x for x in jtu.tree_leaves(state, is_leaf=_is_schedule_free) if _is_schedule_free(x)]
    if len(found) != 1:
        raise ValueError(f"`{owner}` needs exactly one state of `schedule_free`, and found {len(found)} in {state}.")
    (own,) = found
    trained, mean = trainable(params), getattr(own, "x", None)
    if mean is None:
        b1 = jnp.asarray(own.b1)
        mean = jtu.tree_map(lambda y, z: (y - (1 - b1) * z) / b1, trained, own.z)
    return eqx.combine(in_dtypes_of(trained, mean, owner), params)


def _is_schedule_free(x: Any) -> bool:
    return type(x).__name__ == "ScheduleFreeState"  # also of the state here


def selective_transform(optimizer, *, freeze_mask) -> Tx:
    if not holds_pair(optimizer):
        return _selective_transform(optimizer, freeze_mask=as_mask(freeze_mask))
    labels = jtu.tree_map(lambda is_frozen: "freeze" if is_frozen else "train", freeze_mask)
    return partition({"train": optimizer, "freeze": SetToZero()}, lambda params: labels)


def stateless_with_tree_map(f) -> Tx:
    return Stateless(f, leafwise=True)


def value_and_grad_from_state(value_fn):
    computed = _value_and_grad_from_state(value_fn)

    @functools.wraps(computed)
    def value_and_grad(params, *fn_args, state, **fn_kwargs):
        tree_get(state, "value")  # a `KeyError` if there are several
        found = [x for x in jtu.tree_leaves(state, is_leaf=_is_search) if _is_search(x)]
        search = rule_from_optax(None, found[0], Form(params)) if found else None
        return computed(params, *fn_args, state=search, **fn_kwargs)

    return value_and_grad


def _is_search(x: Any) -> bool:
    return is_named(x, "ScaleByZoomLinesearchState", "ScaleByBacktrackingLinesearchState")


def _constructs(factory: Any) -> bool:
    while isinstance(factory, functools.partial):
        factory = factory.func
    return inspect.isclass(factory) or hasattr(factory, "constructs") or factory.__module__ == __name__


def _key(name: str, key: Any, seed: Any) -> Any:
    """The key of a function that also takes a seed, under its old name."""
    if seed is not None:
        warnings.warn(f"`{name}(seed=...)` is deprecated: write `key=...`.", DeprecationWarning, stacklevel=4)
        if key is not None:
            raise ValueError(f"`{name}` takes one of `key` and `seed`, got both.")
        return seed
    if key is None:
        warnings.warn(f"`{name}` needs a key: write `key=0`, which is used now.", stacklevel=4)
        return 0
    return key

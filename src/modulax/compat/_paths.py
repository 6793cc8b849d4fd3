"""The states of transforms of modulax in optax: `to_optax` makes them, and `optax_paths` says where they would lie."""

import functools
import importlib
import sys
from typing import Any

import jax
import jax.tree_util as jtu

from .._plugin.trees import key_names, trainable
from ..authoring import AbstractTransform, Params
from ..tree import leaf_paths
from . import _layouts, _states
from ._transformations import transformation


def optax_paths(optimizer: AbstractTransform, params: Params) -> dict[str, str]:
    """Return the path of each array in optax's form of a state, and its path in ours.

        optax_paths(mx.AdamW(1e-3), params)  # {"0/mu/dense/kernel": "inner.parts.scale_by_adam.mu.dense.kernel", ...}

    For partition rules, loggers and renamers whose regular expressions were written for optax: `opt_state/0/mu/.*`.
    Nothing is computed. Arrays that only one of the two has, such as the step count of an optimizer whose learning rate
    is a number, are left out; a count that optax keeps twice is in two places.

    Args:
        optimizer: the optimizer.
        params: the parameters, or their shapes and dtypes.
    """
    params = trainable(params)
    state = jax.eval_shape(optimizer.init, params)
    program, theirs = jax.make_jaxpr(
        lambda s: _layouts.to_optax(optimizer, s, _layouts.Form(params)), return_shape=True
    )(state)
    names = dict(zip(map(id, program.jaxpr.invars), leaf_paths(state), strict=True))
    places = ["/".join(key_names(path)) for path, _ in jtu.tree_leaves_with_path(theirs)]
    found = zip(places, program.jaxpr.outvars, strict=True)
    return {place: names[id(x)] for place, x in found if id(x) in names}


def to_optax(transform: AbstractTransform) -> Any:
    """Convert a transform to `optax.GradientTransformationExtraArgs`, with the states that optax's own one has.

        tx = compat.to_optax(mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Adam(1e-3)))
        optax.tree.get(tx.init(params), "mu")

    For libraries that look into states: `optax.tree.get`, `isinstance(state, optax.ScaleByAdamState)`,
    `state._replace(mu=...)`, checkpoints in optax's layout. `modulax.to_optax` keeps the states of modulax. Requires
    optax.

    Args:
        transform: a modulax transform.

    Raises:
        ValueError: if `transform` is not a modulax transform.
    """
    if not isinstance(transform, AbstractTransform):
        raise ValueError(f"`compat.to_optax` needs a modulax transform such as `AdamW(1e-3)`, got {transform!r}.")
    init, update = transformation(transform)
    return importlib.import_module("optax").GradientTransformationExtraArgs(
        lambda params: _in_classes_of_optax(init(params)),
        lambda updates, state, params=None, **extra: _in_classes_of_optax(update(updates, state, params, **extra)),
    )


def _in_classes_of_optax(tree: Any) -> Any:
    """A state of optax with classes of optax itself, which has none for what only modulax keeps."""

    def is_ours(x: Any) -> bool:
        return type(x).__module__ == _states.__name__

    def converted(x: Any) -> Any:
        return _class_in_optax(type(x).__name__)(*map(_in_classes_of_optax, x)) if is_ours(x) else x

    return jtu.tree_map(converted, tree, is_leaf=is_ours)


@functools.cache
def _class_in_optax(name: str) -> Any:
    modules = [x for key, x in [*sys.modules.items()] if key.partition(".")[0] == "optax"]
    return next((vars(x)[name] for x in modules if name in vars(x)), _states.CLASSES[name])

"""An optimizer that trains an NNX model in place, and groups of variables."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from flax import nnx
from jax.core import Tracer
from jaxtyping import PyTree

from .._sharding import owners, state_sharding
from .._transform import AbstractTransform


class Hyperparameter(nnx.Variable):
    """A number of an optimizer, which NNX carries into and out of its transforms like any other variable."""


def _is_variable(x: Any) -> bool:
    return isinstance(x, nnx.Variable)


class Optimizer(nnx.Pytree):
    """Trains an NNX model in place, with hyperparameters that can be changed while it trains.

        optimizer = mx.nnx.Optimizer(model, mx.AdamW(1e-3), wrt=nnx.Param)

        @nnx.jit
        def train_step(model, optimizer, x, y):
            loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
            optimizer.update(model, grads)
            return loss

        optimizer.hyperparameters.learning_rate[...] = 1e-4  # nothing is compiled again

    Args:
        model: the model.
        optimizer: a transform or an optimizer.
        wrt: which variables are trained, the filter that `nnx.grad` was given.
        graph: graph mode or tree mode, as in `nnx.Optimizer`; by default what `nnx.set_graph_mode` says.

    Attributes:
        step: how many updates were done.
        hyperparameters: the optimizer, with an `nnx.Variable` in the place of every number.
        opt_state: the state, with an `nnx.OptState` in the place of every array. Moments carry the metadata of their
            parameters and are made where the parameters are.
    """

    def __init__(self, model: Any, optimizer: Any, *, wrt: Any = nnx.Param, graph: bool | None = None) -> None:
        if not isinstance(optimizer, AbstractTransform):
            raise ValueError(
                f"`modulax.nnx.Optimizer` needs a transform of modulax, such as `mx.AdamW(1e-3)`, got {optimizer!r}. "
                f"For one of optax's, use `flax.nnx.Optimizer`."
            )
        self.wrt, self.graph = wrt, graph
        variables = nnx.state(model, wrt, graph=graph)
        params = nnx.as_pure(variables)
        self.step = nnx.OptState(jnp.zeros((), jnp.uint32))
        self.hyperparameters = nnx.data(jtu.tree_map(lambda x: Hyperparameter(jnp.asarray(x)), optimizer))
        self.opt_state = nnx.data(_boxed(_init(optimizer, params), params, variables))

    def update(self, model: Any, grads: Any, /, **extra: Any) -> None:
        """One step: changes the model's variables, the state and the step count in place.

        Args:
            model: the model that the optimizer was made for.
            grads: the gradients, from `nnx.grad` with the same `wrt`.
            extra: handed to the transform.
        """
        params = nnx.as_pure(nnx.state(model, self.wrt, graph=self.graph))
        grads = nnx.as_pure(nnx.state(grads, self.wrt, graph=self.graph))
        params, state = self.transform.step(grads, nnx.as_pure(self.opt_state), params, **nnx.as_pure(extra))
        nnx.update(model, params)
        boxes = jtu.tree_leaves(self.opt_state, is_leaf=_is_variable)
        for box, value in zip(boxes, jtu.tree_leaves(state), strict=True):
            box.set_value(value)
        self.step[...] += 1

    @property
    def transform(self) -> AbstractTransform:
        """The optimizer with the numbers that the variables hold now."""
        return nnx.as_pure(self.hyperparameters)

    def in_force(self) -> dict[str, Any]:
        """Every number by its dotted path, as the next update will use it, schedules resolved."""
        return self.transform.hyperparameters(nnx.as_pure(self.opt_state))


def _init(optimizer: AbstractTransform, params: PyTree) -> PyTree:
    """The state, made where the parameters are."""
    shardings = [getattr(x, "sharding", None) for x in jtu.tree_leaves(params) if not isinstance(x, Tracer)]
    if any(isinstance(s, jax.sharding.NamedSharding) for s in shardings):
        return jax.jit(optimizer.init, out_shardings=state_sharding(optimizer, params))(params)
    return optimizer.init(params)


def _boxed(state: PyTree, params: PyTree, variables: PyTree) -> PyTree:
    """The state in variables, each with the metadata of the parameter that it belongs to."""
    boxes = jtu.tree_leaves(variables, is_leaf=_is_variable)
    leaves, treedef = jtu.tree_flatten(state)

    def box(x: Any, owner: int | None) -> nnx.Variable:
        if owner is None:
            return nnx.optimizer.OptArray(x)
        metadata = boxes[owner].get_metadata()
        if "optimizer_sharding" in metadata:
            metadata["out_sharding"] = metadata.pop("optimizer_sharding")
        return nnx.optimizer.OptVariable(x, **metadata)

    return treedef.unflatten([box(x, owner) for x, owner in zip(leaves, owners(state, params), strict=True)])


def labels(model: Any, groups: Mapping[Any, Any], wrt: Any = nnx.Param) -> PyTree:
    """The group of every variable, as the labels of a `Partition` or the mask of a transform.

        mx.Partition(
            {"lora": mx.AdamW(1e-3), "base": mx.SetToZero()},
            mx.nnx.labels(model, {nnx.LoRAParam: "lora", ...: "base"}),
        )

    Args:
        model: the model.
        groups: labels by NNX filter: a type of variable, a predicate on path and variable, `nnx.PathContains(...)`, or
            `...` for the rest. The first that fits wins, so a subclass stands before its base.
        wrt: which variables are trained.

    Returns:
        a tree of labels, of the structure of `nnx.state(model, wrt)`.
    """
    predicates = [(nnx.filterlib.to_predicate(filter_), label) for filter_, label in groups.items()]
    unused = set(range(len(predicates)))
    out = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, wrt)):
        fits = [i for i, (predicate, _) in enumerate(predicates) if predicate(path, variable)]
        unused -= set(fits)
        if not fits:
            raise ValueError(
                f"`modulax.nnx.labels`: no filter fits the {type(variable).__name__} at `{'.'.join(map(str, path))}`. "
                f"Add one for it, or a last `...` for the rest."
            )
        out[path] = predicates[fits[0]][1]
    if unused:
        raise ValueError(f"`modulax.nnx.labels`: the filter {list(groups)[min(unused)]!r} fits no variable.")
    return nnx.traversals.unflatten_mapping(out)

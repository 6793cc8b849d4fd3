"""An optimizer that trains an NNX model in place, and groups of variables."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from flax import nnx
from jax.core import Tracer
from jaxtyping import PyTree

from .._catalog.sharding import state_sharding
from .._protocol.optimizer import OptimizerState
from .._protocol.transform import AbstractTransform
from ..tree._paths import JoinedNames, join, named_leaves
from ..tree._state import owners


class Hyperparameter(nnx.Variable):
    """A number of an optimizer, which NNX carries into and out of its transforms like any other variable."""


class _Structure:
    """What a flat state was made of: the names of its arrays in JAX's order, and the tree."""

    def __init__(self, names: tuple[str, ...], treedef: Any) -> None:
        self.names, self.treedef = names, treedef
        self._hash = hash((names, treedef))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, _Structure) and (self.names, self.treedef) == (other.names, other.treedef)


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
        hyperparameters: the optimizer, with an `nnx.Variable` in the place of every number.
        opt_state: the arrays of the state by their dotted paths, an `nnx.OptState` each. Moments carry the metadata of
            their parameters and are made where the parameters are.
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
        state = _init(optimizer, params)
        self.hyperparameters = nnx.data(jtu.tree_map(lambda x: Hyperparameter(jnp.asarray(x)), optimizer))
        # Flat, because NNX takes every node apart by itself, in every call: nested, it is a tenth of a small step.
        self.opt_state = nnx.data(_boxed(state, params, variables))
        self._structure = _Structure(tuple(self.opt_state), jtu.tree_structure(state))
        self._steps = None if isinstance(state, OptimizerState) else nnx.OptState(jnp.zeros((), jnp.int32))

    def update(self, model: Any, grads: Any, /, **extra: Any) -> None:
        """One step: changes the model's variables, the state and the step count in place.

        Args:
            model: the model that the optimizer was made for.
            grads: the gradients, from `nnx.grad` with the same `wrt`.
            extra: handed to the transform.
        """
        params = nnx.as_pure(nnx.state(model, self.wrt, graph=self.graph))
        grads = nnx.as_pure(nnx.state(grads, self.wrt, graph=self.graph))
        params, state = self.transform.step(grads, self.state, params, **nnx.as_pure(extra))
        nnx.update(model, params)
        for name, value in zip(self._structure.names, jtu.tree_leaves(state), strict=True):
            self.opt_state[name].set_value(value)
        if self._steps is not None:
            self._steps[...] += 1

    def eval_params(self, model: Any, /) -> PyTree:
        """The parameters to evaluate and to ship, such as the average of Schedule-Free, to be put into a copy.

            averaged = nnx.clone(model)
            nnx.update(averaged, optimizer.eval_params(model))

        Args:
            model: the model that the optimizer was made for, which stays as it is.
        """
        params = nnx.as_pure(nnx.state(model, self.wrt, graph=self.graph))
        return self.transform.eval_params(self.state, params)

    @property
    def step(self) -> nnx.Variable:
        """How many updates were done."""
        return self.opt_state["step"] if self._steps is None else self._steps

    @property
    def state(self) -> PyTree:
        """The state of the transform, made of the arrays that the variables hold now."""
        return self._structure.treedef.unflatten([self.opt_state[name].get_value() for name in self._structure.names])

    @property
    def transform(self) -> AbstractTransform:
        """The optimizer with the numbers that the variables hold now."""
        return nnx.as_pure(self.hyperparameters)

    def in_force(self) -> dict[str, Any]:
        """Every number by its dotted path, as the next update will use it, schedules resolved."""
        return self.transform.hyperparameters(self.state)


def _init(optimizer: AbstractTransform, params: PyTree) -> PyTree:
    """The state, made where the parameters are."""
    shardings = [getattr(x, "sharding", None) for x in jtu.tree_leaves(params) if not isinstance(x, Tracer)]
    if any(isinstance(s, jax.sharding.NamedSharding) for s in shardings):
        return jax.jit(optimizer.init, out_shardings=state_sharding(optimizer, params))(params)
    return optimizer.init(params)


def _boxed(state: PyTree, params: PyTree, variables: PyTree) -> dict[str, nnx.Variable]:
    """The arrays of a state by name, in variables with the metadata of the parameters that they belong to."""
    boxes = jtu.tree_leaves(variables, is_leaf=lambda x: isinstance(x, nnx.Variable))

    def box(x: Any, owner: int | None) -> nnx.Variable:
        if owner is None:
            return nnx.optimizer.OptArray(x)
        metadata = boxes[owner].get_metadata()
        if "optimizer_sharding" in metadata:
            metadata["out_sharding"] = metadata.pop("optimizer_sharding")
        return nnx.optimizer.OptVariable(x, **metadata)

    owned = zip(named_leaves(state), owners(state, params, of_same_shape=True), strict=True)
    return {JoinedNames(join(names)): box(x, owner) for (names, x), owner in owned}


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

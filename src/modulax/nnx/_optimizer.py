"""An optimizer that trains an NNX model in place, and label trees for groups of variables.

How the pieces meet: NNX carries variables into and out of its transforms, and modulax takes pytrees of arrays.
`Optimizer` therefore holds everything that changes in variables: each hyperparameter in a `Hyperparameter`, the arrays
of the state in `nnx.OptState`. `update` reads the arrays from them (`transform`, `state`), runs an ordinary `step`, and
writes the results back.

NNX traverses every node and every variable in every call, in Python, so the state is kept flat and in few variables:
one for each field of the state, whose value holds several arrays by dotted path (`Arrays`). Moments of parameters with
metadata, such as the names of axes, have variables of their own, which carry the metadata. `_Structure` remembers how
to rebuild the tree; it is static and hashable, so it is part of NNX's cache key. `_boxed` makes the variables, and
`_init` creates the state with the sharding of the parameters.
"""

import collections
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from flax.nnx import reprlib
from jax.core import Tracer
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from .. import state_sharding
from .._plugin.containers import injected_paths
from .._plugin.labels import model_of, table_of, with_roles
from .._plugin.messages import (
    explained,
    foreign_attribute,
    format_leaf,
    html_of_arrays,
    meant_by,
    result_is_indexed,
    size_text,
)
from .._plugin.states import owners
from .._plugin.transforms import check_optimizer
from .._plugin.trees import (
    JoinedNames,
    Names,
    check_nnx,
    in_place_of,
    is_variable,
    join,
    key_names,
    named_leaves,
    register_class,
    strong,
)
from ..authoring import AbstractTransform


class _StepCount(nnx.optimizer.OptArray):
    """The number of steps."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("`optimizer.step` is the step count. Write `optimizer.update(model, grads)`.")


class Hyperparameter(nnx.Variable):
    """A hyperparameter of an optimizer, which NNX carries into and out of its transforms like any other variable."""

    def set_value(self, value: Any, **options: Any) -> None:
        # A Python number, or an array such as `jnp.asarray(1e-3)`, has another type for JAX than the one in its place.
        super().set_value(in_place_of(self.get_value(), value), **options)


@jtu.register_pytree_with_keys_class
class Arrays:
    """The arrays of one variable by dotted path, as a pytree.

    Not a mapping, because the functions of NNX on pure states look for variables inside mappings.
    """

    def __init__(self, names: tuple[JoinedNames, ...], arrays: Sequence[Any]) -> None:
        self.names, self.arrays = names, arrays

    def __getitem__(self, name: str) -> Any:
        return self.arrays[self.names.index(JoinedNames(name))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrays) and self.names == other.names and list(self.arrays) == list(other.arrays)

    def __repr__(self) -> str:
        return f"Arrays({', '.join(self.names)})"

    @property
    def sharding(self) -> list[Any]:
        """The shardings, which `nnx.eval_shape` within a mesh looks for, to give one to a variable that has none."""
        return [x.sharding for x in self.arrays]

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[JoinedNames, ...]]:
        keys = [jtu.DictKey(JoinedNames(name)) for name in self.names]
        return list(zip(keys, self.arrays, strict=True)), self.names

    def tree_flatten(self) -> tuple[Sequence[Any], tuple[JoinedNames, ...]]:
        return self.arrays, self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[JoinedNames, ...], arrays: Sequence[Any]) -> Self:
        return cls(names, arrays)


register_class(Arrays)


class _Structure:
    """How a flat state was made: the places of its arrays in JAX's order, and the tree structure.

    A place is the name of a variable, and the name within its `Arrays` or None.
    """

    def __init__(self, places: tuple[tuple[JoinedNames, JoinedNames | None], ...], treedef: Any) -> None:
        self.places, self.treedef = places, treedef
        # Computed once: NNX hashes it in every call, and `update` reads the indices at every step.
        self._hash = hash((places, treedef))
        self._indices: dict[JoinedNames, list[int]] = {}
        for i, (name, _) in enumerate(places):
            self._indices.setdefault(name, []).append(i)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, _Structure) and (self.places, self.treedef) == (other.places, other.treedef)

    def __reduce__(self) -> Any:
        # As a tree, because the structure of an Equinox module cannot be used after pickling or copying.
        return _structure_of, (self.places, self.treedef.unflatten(range(self.treedef.num_leaves)))

    def values(self, state: PyTree) -> dict[str, Any]:
        """The values of the variables: arrays, and `Arrays`."""
        leaves = jtu.tree_leaves(state)
        out: dict[str, Any] = {}
        for name, indices in self._indices.items():
            names = tuple(within for i in indices if (within := self.places[i][1]) is not None)
            out[name] = Arrays(names, [leaves[i] for i in indices]) if names else leaves[indices[0]]
        return out

    def state(self, values: Mapping[str, Any]) -> PyTree:
        """The state, the inverse of `values`."""
        leaves: list[Any] = [None] * len(self.places)
        for name, indices in self._indices.items():
            is_several = self.places[indices[0]][1] is not None
            for i, x in zip(indices, values[name].arrays if is_several else [values[name]], strict=True):
                leaves[i] = x
        return self.treedef.unflatten(leaves)


def _structure_of(places: tuple[tuple[JoinedNames, JoinedNames | None], ...], tree: PyTree) -> _Structure:
    return _Structure(places, jtu.tree_structure(tree))


class Optimizer(nnx.Pytree):
    """Train an NNX model in place, with hyperparameters that can be changed during training without recompiling.

        optimizer = mx.nnx.Optimizer(model, mx.AdamW(1e-3), wrt=nnx.Param)

        @nnx.jit
        def train_step(model, optimizer, x, y):
            loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
            optimizer.update(model, grads)
            return loss

        optimizer.hyperparameters.learning_rate[...] = 1e-4  # nothing is recompiled

    Write `nnx.jit`, not `jax.jit`: under `jax.jit` the model and the optimizer are copies, and nothing is trained.

    Args:
        model: the model.
        optimizer: a transform or an optimizer. Roles, such as `Muon` uses, are read from the model.
        wrt: filter of the variables to train, the same as for `nnx.grad`.
        graph: graph mode or tree mode, as in `nnx.Optimizer`; the default is set by `nnx.set_graph_mode`.
        zero: axis of the mesh to divide the state over, or several axes, as in `state_sharding` (ZeRO-1).
        allow_empty: whether `wrt` may select nothing.

    Attributes:
        hyperparameters: the optimizer, with an `nnx.Variable` in place of every hyperparameter.
        opt_state: the state in few variables, which saves NNX time: an `nnx.OptState` for each field of the state, with
            several arrays by dotted path in an `Arrays`. Moments of parameters with metadata, such as `out_sharding`,
            are in separate variables that carry it. To read a moment, write `mx.tree.get(optimizer.state, "mu")`.

    Raises:
        ValueError: if `optimizer` is not a modulax transform or has an `Injected` in it, if `wrt` selects no variable,
            or if the state cannot be divided over `zero`.
    """

    @explained
    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        wrt: Any = nnx.Param,
        graph: bool | None = None,
        zero: str | tuple[str, ...] | None = None,
        allow_empty: bool = False,
    ) -> None:
        check_nnx(nnx)
        check_optimizer("modulax.nnx.Optimizer(model, optimizer)", optimizer, model)
        if injected_paths(optimizer):
            # Its numbers in the state would overrule the variables, and `state` is a tree made for the reader.
            raise ValueError(
                "`modulax.nnx.Optimizer` keeps every hyperparameter in a variable, so that it needs no `Injected` or "
                "`inject_hyperparams`. Give it the transform inside, `injected.inner`, and change a hyperparameter by "
                "`optimizer.hyperparameters.learning_rate[...] = 1e-4`."
            )
        self.wrt, self.graph = wrt, graph
        # The transforms get trees without the classes of the layers.
        optimizer = with_roles(optimizer, lambda given: table_of(model_of(model, wrt, graph), given))
        variables = nnx.state(model, wrt, graph=graph)
        params = nnx.as_pure(variables)
        if not (allow_empty or jtu.tree_leaves(params)):
            raise ValueError(_nothing_selected(wrt, nnx.state(model, graph=graph)))
        state = _init(optimizer, params, zero, allow_empty)
        self.hyperparameters = nnx.data(jtu.tree_map(lambda x: Hyperparameter(strong(jnp.asarray(x))), optimizer))
        self._structure, boxes = _boxed(state, params, variables, is_divided=zero is not None)
        self.opt_state = nnx.data(boxes)
        has_steps = optimizer.clock == "keeper" and "step" in self.opt_state  # an optimizer, or `Scheduled`
        self._steps = None if has_steps else _StepCount(jnp.zeros((), jnp.int32))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":  # NNX would take it for an attribute of its own
            object.__setattr__(self, name, value)
            return
        fields = vars(self).get("hyperparameters")
        if fields is not None and name not in vars(self) and (where := _variable(fields, name)):
            raise AttributeError(f"A new value goes into the variable of the hyperparameter: `{where}[...] = ...`.")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"`modulax.nnx.Optimizer` has no attribute `{name}`.")
        fields = vars(self).get("hyperparameters")
        where = fields is not None and _variable(fields, name)
        remedy = f"Write `{where}[...]`." if where else foreign_attribute("nnx", name)
        raise AttributeError(f"`modulax.nnx.Optimizer` has no attribute `{name}`. {remedy or ''}", name=None, obj=None)

    def __nnx_repr__(self) -> Generator[Any, Any, None]:
        yield reprlib.Object(type(self))
        yield reprlib.Attr("optimizer", self.transform)
        yield reprlib.Attr("wrt", self.wrt)
        yield reprlib.Attr("step", format_leaf(self.step.get_value()), use_raw_value=True)
        yield reprlib.Attr("state", size_text(self.state), use_raw_value=True)

    def _repr_html_(self) -> str:
        return f"{self.transform._repr_html_()}{html_of_arrays(self.state)}"

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # NNX would copy the structures of the Equinox modules, which cannot be used then.
        copied = nnx.clone(self, graph=self.graph)
        if memo is not None:
            memo[id(self)] = copied
        return copied

    @explained
    def update(self, model: Any, grads: Any, /, **extra: Any) -> None:
        """Take one step: update the variables of the model, the state and the step count in place.

        Args:
            model: the model that the optimizer was created for.
            grads: gradients from `nnx.grad` with the same `wrt`.
            extra: extra arguments of the transform.

        Raises:
            TypeError: if the model or the gradients are missing.
        """
        if isinstance(grads, tuple) and np.shape(grads[0]) == () and isinstance(model, nnx.Module):
            raise TypeError("These look like the result of `nnx.value_and_grad`: write `loss, grads = ...`.")
        if isinstance(grads, nnx.Module) and not isinstance(model, nnx.Module):
            raise TypeError(
                "`modulax.nnx.Optimizer.update` takes the model and the gradients in the other order: write "
                "`update(model, grads)`."
            )
        params = nnx.as_pure(nnx.state(model, self.wrt, graph=self.graph))
        grads = nnx.as_pure(nnx.state(grads, self.wrt, graph=self.graph))
        params, state = self.transform.step(grads, self.state, params, **nnx.as_pure(extra))
        nnx.update(model, params)
        for name, value in self._structure.values(state).items():
            self.opt_state[name].set_value(value)
        if self._steps is not None:
            self._steps[...] += 1

    def eval_params(self, model: Any, /) -> PyTree:
        """Return the parameters to evaluate or deploy, such as the average of Schedule-Free, to be put into a copy.

            averaged = nnx.clone(model)
            nnx.update(averaged, optimizer.eval_params(model))

        Args:
            model: the model that the optimizer was created for; it is not changed.
        """
        params = nnx.as_pure(nnx.state(model, self.wrt, graph=self.graph))
        return self.transform.eval_params(self.state, params)

    @property
    def step(self) -> nnx.Variable:
        """The number of updates so far."""
        return self.opt_state["step"] if self._steps is None else self._steps

    @property
    def state(self) -> PyTree:
        """The state of the transform, built from the current values of the variables: a new tree in each call.

        To change the state, assign one: `optimizer.state = mx.tree.set(optimizer.state, mu=...)`.
        """
        return self._structure.state({name: variable.get_value() for name, variable in self.opt_state.items()})

    @state.setter
    def state(self, state: PyTree) -> None:
        if jtu.tree_structure(state) != jtu.tree_structure(self.state):
            raise ValueError(
                "`optimizer.state = ...` needs a state of the same optimizer, as `optimizer.state` returns."
            )
        for name, value in self._structure.values(state).items():
            self.opt_state[name].set_value(value)

    @property
    def transform(self) -> AbstractTransform:
        """The optimizer with the current values of the hyperparameter variables."""
        return nnx.as_pure(self.hyperparameters)

    @result_is_indexed
    def in_force(self) -> dict[str, Any]:
        """Return the hyperparameters by dotted path, with schedules evaluated for the next update."""
        return self.transform.hyperparameters(self.state)

    @result_is_indexed
    def metrics(self) -> dict[str, Any]:
        """Return scalars for a log, by short names: the learning rate in force, measurements, counters."""
        return self.transform.metrics(self.state)


def _variable(fields: AbstractTransform, name: str) -> str | None:
    """The code that reads the variable of a hyperparameter, given its name here or in another library."""
    for path, _ in jtu.tree_leaves_with_path(fields, is_leaf=is_variable):
        own = key_names(path)[-1]
        if own == name or meant_by(name, [own]):
            return f"optimizer.hyperparameters{jtu.keystr(path)}"
    return None


def _init(optimizer: Any, params: PyTree, zero: str | tuple[str, ...] | None, allow_empty: bool) -> PyTree:
    """Initialize the state, with the sharding of the parameters, divided over `zero`."""
    arrays = [x for x in jtu.tree_leaves(params) if not isinstance(x, Tracer)]
    if zero is not None and len(arrays) < len(jtu.tree_leaves(params)):
        raise ValueError(
            f"`modulax.nnx.Optimizer(zero={zero!r})` needs to know where the parameters are, which a traced function "
            "does not. Create the optimizer outside `nnx.jit`."
        )
    is_named = any(isinstance(getattr(x, "sharding", None), NamedSharding) for x in arrays)
    if is_named or zero is not None:
        return jax.jit(optimizer.init, out_shardings=state_sharding(optimizer, params, zero=zero))(params)
    return optimizer.init(params, allow_empty=allow_empty)


def _nothing_selected(wrt: Any, variables: PyTree) -> str:
    """The error message for a filter that selects none of the variables of a model."""
    types = collections.Counter(type(x).__name__ for x in jtu.tree_leaves(variables, is_leaf=is_variable))
    there = ", ".join(f"{n} `{name}`" for name, n in types.items()) or "none"
    tag = " A string selects the variables with that tag." if isinstance(wrt, str) else ""
    return (
        f"`modulax.nnx.Optimizer(wrt={getattr(wrt, '__name__', repr(wrt))})` selects no variable of the model, so "
        f"nothing would be trained. Its variables: {there}.{tag} Give a type of these, such as `wrt=nnx.Param`, or "
        f"write `allow_empty=True` if nothing is to be trained."
    )


def _boxed(
    state: PyTree, params: PyTree, variables: PyTree, is_divided: bool
) -> tuple[_Structure, dict[str, nnx.Variable]]:
    """Put the arrays of a state into variables by name: each field into one, and what has metadata on its own."""
    leaves = named_leaves(state)
    indices = owners(state, params, of_same_shape=True)
    metadata = [_metadata(variable) for variable in jtu.tree_leaves(variables, is_leaf=is_variable)]
    extras = [None if owner is None else metadata[owner] for owner in indices]
    is_single = nnx.optimizer.OptArray(jnp.zeros(())).get_metadata().get("ref", False)  # a `jax.Ref` holds one array
    fields = collections.Counter(names[0] for (names, _), own in zip(leaves, extras, strict=True) if names and not own)

    def place(names: Names, own: Any) -> tuple[JoinedNames, JoinedNames | None]:
        if own or is_single or not names or fields[names[0]] == 1:
            return JoinedNames(join(names)), None
        return JoinedNames(join(names[:1])), JoinedNames(join(names[1:]))

    places = tuple(place(names, own) for (names, _), own in zip(leaves, extras, strict=True))
    structure = _Structure(places, jtu.tree_structure(state))
    of_variables: dict[str, Any] = {place[0]: own for place, own in zip(places, extras, strict=True)}
    values = structure.values(state).items()
    return structure, {name: _box(name, x, of_variables[name], is_divided) for name, x in values}


def _box(name: str, x: Any, own: dict[str, Any] | None, is_divided: bool) -> nnx.Variable:
    if name == "step":
        return _StepCount(x)
    if not own:
        return nnx.optimizer.OptArray(x)
    if is_divided and "out_sharding" in own and isinstance(x.sharding, NamedSharding):
        own = own | {"out_sharding": tuple(x.sharding.spec)}  # NNX would move it back to its parameter
    return nnx.optimizer.OptVariable(x, **own)


def _metadata(parameter: nnx.Variable) -> dict[str, Any] | None:
    """The metadata that the moments of a parameter carry; None if the parameter has only those of every variable."""
    metadata = parameter.get_metadata()
    if "optimizer_sharding" in metadata:
        metadata["out_sharding"] = metadata.pop("optimizer_sharding")
    return None if metadata == nnx.optimizer.OptArray(jnp.zeros(())).get_metadata() else metadata


def labels(model: Any, groups: Mapping[Any, Any], wrt: Any = nnx.Param) -> PyTree:
    """Label every variable with its group, for the labels of a `Partition` or the mask of a transform.

        mx.Partition(
            {"lora": mx.AdamW(1e-3), "base": mx.SetToZero()},
            mx.nnx.labels(model, {nnx.LoRAParam: "lora", ...: "base"}),
        )

    Args:
        model: the model.
        groups: labels by NNX filter: a variable type, a predicate on path and variable, `nnx.PathContains(...)`, or
            `...` for the rest. The first match wins, so put a subclass before its base class.
        wrt: filter of the variables to train.

    Returns:
        A tree of labels with the structure of `nnx.state(model, wrt)`.

    Raises:
        ValueError: if a variable matches no filter, or a filter matches no variable.
    """
    check_nnx(nnx)
    predicates = [(nnx.filterlib.to_predicate(filter_), label) for filter_, label in groups.items()]
    unused = set(range(len(predicates)))
    out = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, wrt)):
        fits = [i for i, (predicate, _) in enumerate(predicates) if predicate(path, variable)]
        unused -= set(fits)
        if not fits:
            raise ValueError(
                f"`modulax.nnx.labels`: no filter matches the {type(variable).__name__} at "
                f"`{'.'.join(map(str, path))}`. Add one for it, or a last `...` for the rest."
            )
        out[path] = predicates[fits[0]][1]
    if unused:
        raise ValueError(f"`modulax.nnx.labels`: the filter {list(groups)[min(unused)]!r} matches no variable.")
    return nnx.traversals.unflatten_mapping(out)

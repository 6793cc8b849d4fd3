"""`roles`: what each parameter of a model is."""

import abc
import copy
import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.hyperparameters import AbstractHyperparameters
from .._protocol.masks import AbstractLabels
from .._protocol.patterns import by_path, nodes_of
from .._support.checks import listing, suggestion
from .._support.flax_nodes import check_nnx
from .._support.printing import html_table, table
from .._support.wrong_calls import explained
from ..tree._math import shapes_of
from ..tree._paths import Names, key_names, matches, named_leaves
from .depth import depths_in, lists_of_blocks, names_in_flat
from .layers import role_in_layer
from .names import by_name, in_flax_dict, in_module, unknown
from .role import AbstractRole, Other, in_stack
from .stacks import Shape, stack_axes, without

_COLUMNS = ("path", "shape", "role", "fan in", "fan out", "batch", "depth")
Given = tuple[tuple[str, AbstractRole], ...]


class AbstractRoles(AbstractLabels):
    """The role of every leaf of a tree.

    Attributes:
        given: pairs of pattern and role that the user gave.
    """

    given: Given

    @property
    @abc.abstractmethod
    def is_given(self) -> bool:
        """Whether the user gave anything: such pairs, or the result of `roles`."""

    @abc.abstractmethod
    def labels(self, tree: PyTree, *, partial: bool = False) -> list[AbstractRole]:
        """Return the role of each leaf, in JAX's order."""


@dataclasses.dataclass(frozen=True)
class FoundRoles(AbstractRoles):
    """Roles that are found in each tree: in its classes, or in the names of its paths.

    Args:
        given: pairs of pattern and role, for what is not found.
    """

    given: Given = ()

    @property
    def is_given(self) -> bool:
        return bool(self.given)

    def __repr__(self) -> str:
        return repr(dict(self.given)) if self.given else "None"

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[AbstractRole]:
        del partial
        return [role for _, role in roles_of(model_of(tree), self.given)]

    def bound(self, find: Callable[[Any], "Roles"]) -> AbstractLabels:
        found = copy.copy(find(dict(self.given)))
        found._is_given = self.is_given
        return found

    def plain(self) -> Any:
        return OrderedDict(self.given) or None


class Model(NamedTuple):
    """A model as its parameters, the nodes that hold them, and the roles that their metadata give.

    Args:
        params: the parameters.
        nodes: the nodes of the model by the names of their paths.
        roles: roles from metadata, by the names of the paths of arrays.
    """

    params: PyTree
    nodes: Mapping[Names, Any]
    roles: Mapping[Names, AbstractRole]


def model_of(model: Any, wrt: Any = None, graph: bool | None = None) -> Model:
    """Return what `roles` reads of a model.

    Args:
        model: the model, or a tree of parameters.
        wrt: filter of the variables of an NNX model; by default `nnx.Param`.
        graph: graph mode or tree mode of NNX.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(model, nnx.Module):
        check_nnx(nnx)
        variables = nnx.state(model, nnx.Param if wrt is None else wrt, graph=graph)
        nodes = {tuple(map(str, path)): node for path, node in nnx.iter_modules(model, graph=graph)}
        metadata = {
            tuple(map(str, path)): variable.get_metadata().get("role")
            for path, variable in nnx.to_flat_state(variables)
        }
        return Model(nnx.as_pure(variables), nodes, {names: role for names, role in metadata.items() if role})
    nodes = {key_names(path): node for path, node in nodes_of(model)[1].items()}
    return Model(model, nodes, {})


def roles_of(model: Model, given: Given) -> list[tuple[Names, AbstractRole]]:
    """Return the names and the role of each parameter, in JAX's order.

    Raises:
        ValueError: if a pattern matches no parameter and no layer.
    """
    leaves = named_leaves(model.params)
    known = [names for names, _ in named_leaves(model.params, with_none=True)]
    if flat := names_in_flat(known):
        model, known = model._replace(nodes={}), list(flat.values())
        leaves = [(flat[names], x) for names, x in leaves]
    own = {inside: names for names, inside in flat.items()}
    _refuse_unmatched(given, known)
    blocks = _blocks(known)
    # `SplitRealAndImaginary` puts two arrays in the place of one.
    whole = {x: x[:-1] if getattr(model.nodes.get(x[:-1]), "stands_for_one_array", False) else x for x in known}
    stacks = stack_axes({whole[names]: tuple(x.shape) for names, x in leaves})
    inner: dict[Names, Shape | None] = dict.fromkeys(whole.values())
    inner |= {whole[names]: without(tuple(x.shape), stacks.get(whole[names], ())) for names, x in leaves}
    found: list[tuple[Names, AbstractRole]] = []
    for names, x in leaves:
        role = _found(model, whole[names], x.shape, inner, stacks.get(whole[names], ()), blocks.get(names))
        found.append((own.get(names, names), _given(given, names, x.shape, role)))
    return found


def _blocks(known: Sequence[Names]) -> dict[Names, int]:
    """The number of the names that lead to the block in which each parameter is, if it is in one."""
    return {names: path.count(".") + 1 for path, numbers in lists_of_blocks(known).items() for names in numbers}


def _refuse_unmatched(given: Given, known: Sequence[Names]) -> None:
    for pattern, _ in given:
        if known and not any(_fits(names[:n], pattern) for names in known for n in range(1, len(names) + 1)):
            raise ValueError(
                f"`roles`: the pattern `{pattern}` matches no parameter and no layer. The paths are "
                f"{listing(map('.'.join, known))}.{by_path({pattern: True}).hint(pattern, known)}"
            )


def _found(
    model: Model, names: Names, shape: Shape, inner: Mapping[Names, Shape | None], stack: Shape, block: int | None
) -> AbstractRole:
    """The role of a parameter without what the user gives by pattern."""
    if not names:
        return unknown(shape)
    owners = [model.nodes[names[:n]] for n in range(len(names)) if names[:n] in model.nodes]
    role = role_in_layer(owners, names, shape)
    if role is None:
        is_plain = not owners or isinstance(owners[-1], (dict, list, tuple, Mapping))
        role = in_flax_dict(names, inner) if is_plain else in_module(names, without(shape, stack))
        role = in_stack(role or unknown(without(shape, stack)), stack, len(shape))
    role = by_name(role, names, shape, block)
    declared = model.roles.get(names) or _declared(model, names, role)
    return role if declared is None else _like(declared, role, names, shape)


# The two parts of a complex array, inside `SplitRealAndImaginary`.
_PARTS = (("real",), ("imaginary",))


def _like(given: AbstractRole, found: AbstractRole, names: Names, shape: tuple[int, ...]) -> AbstractRole:
    try:
        return given.like(found, shape)
    except ValueError as error:
        raise ValueError(f"`roles`, at `{'.'.join(names)}`: {error}") from error


def _declared(model: Model, names: Names, found: AbstractRole) -> AbstractRole | None:
    """The role in the metadata of the innermost field that holds the parameter, or the layer of a weight."""
    for n in range(len(names) - 1, -1, -1):
        owner = model.nodes.get(names[:n])
        fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
        role = next((field.metadata.get("role") for field in fields if field.name == names[n]), None)
        if isinstance(role, AbstractRole) and (n == len(names) - 1 or not found.is_vector):
            return role
    return None


def _given(given: Given, names: Names, shape: tuple[int, ...], found: AbstractRole) -> AbstractRole:
    """The role of the first pattern that fits the parameter, or the layer of a weight; else the one that was found."""
    for pattern, role in given:
        is_weight = not found.is_vector
        if _fits(names, pattern) or (is_weight and any(_fits(names[:n], pattern) for n in range(1, len(names)))):
            return _like(role, found, names, shape)
    return found


def _fits(names: Names, pattern: str) -> bool:
    return matches(".".join(names), pattern)


class Roles(AbstractRoles):
    """The role of every parameter of a model, by its path; printed as a table.

        found = roles(model)
        print(found)
        found["layers.0.weight"].fan_in

    Pass it to an optimizer if the tree of parameters has no classes, as in a dict made from a model:
    `Muon(2e-2, roles=roles(model))`.

    Attributes:
        tree: a tree like the parameters, with the `AbstractRole` of each array.
    """

    def __init__(
        self,
        found: Mapping[Names, AbstractRole],
        shapes: Mapping[Names, tuple[int, ...]],
        tree: PyTree,
        given: Given = (),
    ):
        self.given, self._is_given = given, True
        self._found = tuple(found.items())
        self._by_path = {".".join(names): role for names, role in found.items()}
        self._shapes = dict(shapes)
        self._hash = hash(self._found)  # computed once: as a static field, it is hashed in every call
        self.tree = tree

    @property
    def is_given(self) -> bool:
        return self._is_given

    def __eq__(self, other: object) -> bool:
        if self is other or type(other) is not Roles:
            return self is other
        return (self.is_given, self._found) == (other.is_given, other._found)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        # Another process has another hash of the same strings.
        return Roles, (dict(self._found), self._shapes, self.tree, self.given), {"_is_given": self._is_given}

    def __getitem__(self, path: str) -> AbstractRole:
        if path not in self._by_path:
            raise KeyError(f"there is no parameter `{path}`.{suggestion(path, list(self._by_path))}")
        return self._by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)

    def items(self) -> Iterator[tuple[str, AbstractRole]]:
        """Iterate over paths and roles."""
        return iter(self._by_path.items())

    def __str__(self) -> str:
        return "\n".join(table(_COLUMNS, self._rows()))

    def _repr_html_(self) -> str:
        return html_table(_COLUMNS, self._rows())

    def _rows(self) -> list[list[str]]:
        return [self._row(names, role) for names, role in self._found]

    def _row(self, names: Names, role: AbstractRole) -> list[str]:
        shape = self._shapes[names]
        sizes = [",".join(str(shape[i]) for i in axes) for axes in (role.fan_in, role.fan_out, role.batch)]
        kind = role.kind if role.is_known or not role.kind else f"{role.kind} (assumed)"
        return [".".join(names), str(list(shape)), kind, *sizes, _depth_text(role.depth)]

    def __repr__(self) -> str:
        return f"<roles of {len(self)} parameters>"

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[AbstractRole]:
        """Return the role of each leaf of a tree with the same paths, or with some of them."""
        found = dict(self._found)
        leaves = [
            (names[:-1] if names not in found and names[-1:] in _PARTS else names, x) for names, x in named_leaves(tree)
        ]
        for names, _ in leaves:
            if names not in found and not partial:
                raise ValueError(
                    f"`roles` knows no parameter `{'.'.join(names)}`: it was given a model with the parameters "
                    f"{listing(self._by_path)}."
                )
        return [found.get(names, Other()) for names, _ in leaves]


def _depth_text(depth: int | tuple[int, ...] | None) -> str:
    if isinstance(depth, tuple):
        return f"{depth[0]} … {depth[-1]}"
    return "" if depth is None else str(depth)


@explained
def roles(model: Any, given: Mapping[str, AbstractRole] | None = None) -> Roles:
    """Classify the parameters of a model: find the role, the meaning of the axes, and the depth of the block of each.

        print(roles(model))
        roles(model, {"readout": Head(), "blocks.*.qkv": Attention(heads=8)})

    A role is found, in this order:

    * from `given`, a mapping from patterns to roles; a pattern matches a parameter, or a layer, and then stands for its
      weight;
    * from the metadata `role` of a field, `weight: Array = eqx.field(metadata={"role": Head()})`, or of a variable of
      NNX, `nnx.Param(x, role=Head())`; the role of a field that holds one or more layers is that of their weights;
    * from the class of a layer of Equinox or NNX; a linear layer whose name, or the name of what it is in, is `head`,
      `lm_head`, `logits`, `classifier`, `readout` or `unembed` is the head, if it is not in a block;
    * from the names in a dict of parameters of Flax: `kernel`, `embedding`, `scale`, `bias`, and `query`, `key`,
      `value`, `out` for attention;
    * from the names in a user's own module: `bias`, `scale`, `gain`, `pos_embed`, `token_embedding`, ...

    Any other array with two axes is assumed to be a hidden matrix of shape `(inputs, outputs)`; the table marks the
    assumption.

    Args:
        model: an Equinox model, an NNX model, or a tree of parameters; shapes are enough.
        given: roles by pattern, for parameters whose role is not found, or found wrongly.

    Raises:
        ValueError: if a pattern matches no parameter.
    """
    if isinstance(model, AbstractHyperparameters):
        raise ValueError(f"`roles` was given `{type(model).__name__}` in place of a model: write `roles(model)`.")
    return table_of(model_of(model), dict(as_roles(given).given))


def table_of(model: Model, given: Mapping[str, AbstractRole]) -> Roles:
    """Return the roles of a model with the depths of its blocks."""
    tree = shapes_of(model.params)
    found = dict(roles_of(model._replace(params=tree), tuple(given.items())))
    shapes = {names: x.shape for names, x in named_leaves(tree)}
    depths = depths_in(shapes)
    found = {names: dataclasses.replace(role, depth=depths.get(names, role.depth)) for names, role in found.items()}
    return Roles(found, shapes, jtu.tree_structure(tree).unflatten(found.values()), tuple(given.items()))


def as_roles(x: Any) -> AbstractRoles:
    """Convert the argument `roles` of an optimizer: None, roles by pattern, or the result of `roles`."""
    if x is None:
        return FoundRoles()
    if isinstance(x, AbstractRoles):
        return x
    if isinstance(x, Mapping) and all(isinstance(role, AbstractRole) for role in x.values()):
        return FoundRoles(tuple(x.items()))
    raise ValueError(
        f'`roles` must be a mapping from patterns to roles, such as `{{"readout": Head()}}`, or the result of '
        f"`modulax.roles(model)`, got {x!r}."
    )

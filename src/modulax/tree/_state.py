"""Which arrays of a state belong to which parameter, according to the declarations of its fields."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.checks import listing
from .._support.module import AbstractState, FieldKind, kind_of
from ._paths import Names, is_plain, key_names, longest_prefix, named_leaves
from ._stacks import stack_like, unstack

SectionKind = Literal["params", "shared", "unknown"]


@jtu.register_pytree_node_class
class _NoParams:
    """Parameters without leaves: a marker for where a state made for them would hold a tree like the parameters."""

    def tree_flatten(self):
        return (), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> "_NoParams":
        del aux, children
        return cls()


def one_level(node: PyTree) -> tuple[list[tuple[Any, PyTree]], Any]:
    """Return the direct children of a node with their key paths, and the node's structure; no children for a leaf."""
    children, treedef = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return ([], treedef) if jtu.treedef_is_leaf(treedef) else (children, treedef)


def states_with_names(node: PyTree, names: Names = ()) -> Iterator[tuple[Names, AbstractState]]:
    """Iterate over the states in a tree, the outer ones first, with the names that lead to them."""
    if isinstance(node, AbstractState):
        yield names, node
    for key, child in one_level(node)[0]:
        yield from states_with_names(child, names + key_names(key))


def outermost(tree: PyTree, kind: type) -> list[tuple[Names, Any]]:
    """The outermost nodes of a class in a tree, with the names that lead to them."""
    found = jtu.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, kind))
    return [(key_names(path), x) for path, x in found if isinstance(x, kind)]


def map_sections(
    function: Callable[[SectionKind, Names, PyTree], Any], node: PyTree, probe: Any = None, names: Names = ()
) -> Any:
    """Replace every value that the fields of a state hold by `function(kind, names, value)`.

    The kind is `"params"` for a tree like the parameters, `"shared"` for a value that all parameters share, and
    `"unknown"` in the state of another library's transform, whose fields declare nothing. If `probe`, the state of the
    same transform for `_NoParams`, is given, the first two are distinguished there as well.
    """
    if node is None:
        return None
    if (kind := _kind_of_whole(node, probe)) is not None:
        return function(kind, names, node)
    children, treedef = one_level(node)
    probes = dict(one_level(probe)[0])
    if list(probes) != [key for key, _ in children]:
        probes = {}  # a probe with other children says nothing about those of the node
    new = []
    for (key, child), field in zip(children, _fields(node, eqx.Module, children), strict=True):
        kind, below = _section_kind(field, child), names + key_names(key)
        if kind == "states" or child is None:
            new.append(map_sections(function, child, probes.get(key), below))
        else:
            new.append(function(kind, below, child))
    return treedef.unflatten(new)


def _kind_of_whole(node: PyTree, probe: Any) -> SectionKind | None:
    """The kind of a node that is one section; None if there are sections inside."""
    # Where the state for `_NoParams` holds this marker, another state holds a tree like the parameters.
    if isinstance(probe, _NoParams):
        return "params"
    is_nest = probe is not None or isinstance(node, eqx.Module) or is_plain(node, dict, list, tuple)
    if is_nest and not jtu.all_leaves([node]):
        return None
    return "unknown" if probe is None else "shared"


def _fields(node: PyTree, cls: type, children: Sequence[tuple[Any, PyTree]]) -> list[dataclasses.Field | None]:
    """The field of each child of a node of this class; None for the children of any other node."""
    fields = {f.name: f for f in dataclasses.fields(node)} if isinstance(node, cls) else {}
    return [fields[key[0].name] if fields else None for key, _ in children]


def _section_kind(field: dataclasses.Field | None, value: Any) -> FieldKind:
    """The kind of a field; one that contains modulax states counts as nested, whatever its declaration."""
    kind = "states" if field is None else kind_of(field)
    if kind != "params":
        return kind
    leaves = jtu.tree_leaves(value, is_leaf=lambda x: isinstance(x, AbstractState))
    return "states" if any(isinstance(x, AbstractState) for x in leaves) else "params"


class Section(NamedTuple):
    """A field of a state by its location in a tree.

    Args:
        names: the names of the keys that lead to the field, including its own name.
        root: how many of them lead to the outermost state; the others before the last are nesting.
        kind: what the field holds.
    """

    names: Names
    root: int
    kind: FieldKind


def sections(node: PyTree, names: Names = (), root: int | None = None) -> Iterator[Section]:
    """Iterate over the fields of every state in a tree, which may hold parameters, models and optimizers too."""
    root = len(names) if root is None and isinstance(node, AbstractState) else root
    children = one_level(node)[0]
    for (key, child), field in zip(children, _fields(node, AbstractState, children), strict=True):
        below = names + key_names(key)
        kind = _section_kind(field, child)
        if root is not None and field is not None:
            yield Section(below, root, kind)
        if root is None or kind == "states":
            yield from sections(child, below, root)


def declarations(node: PyTree, declared: Mapping[str, Any] | None = None) -> list[Mapping[str, Any] | None]:
    """Return for each leaf of a state, in JAX's order, the declaration of the tree like the parameters that it is in.

    A leaf that is shared, or in a state of another library, has None.
    """
    children, treedef = one_level(node)
    out = [declared] * treedef.num_leaves if jtu.treedef_is_leaf(treedef) else []
    for (_, child), field in zip(children, _fields(node, AbstractState, children), strict=True):
        below = declared if field is None else field.metadata if _section_kind(field, child) == "params" else None
        out += declarations(child, below)
    return out


def is_per_matrix(declared: Mapping[str, Any] | None) -> bool:
    """Whether a declaration is that of a field that belongs to the matrices of a parameter."""
    return declared is not None and bool(declared.get("per_matrix"))


def owning_paths(state: PyTree) -> list[tuple[SectionKind, Names]]:
    """Return the kind and the names of each leaf of a state, in JAX's order.

    The names are relative to the tree like the parameters that the leaf is in. In states of unknown kind they are
    relative to the root.
    """
    paths: list[tuple[SectionKind, Names]] = []

    def section(kind: SectionKind, names: Names, value: PyTree) -> None:
        before = names if kind == "unknown" else ()
        paths.extend((kind, before + inner) for inner, _ in named_leaves(value))

    map_sections(section, state)
    return paths


def owners(state: PyTree, params: PyTree, *, of_same_shape: bool = False) -> list[int | None]:
    """Return for each leaf of a state, in JAX's order, the index of the parameter it belongs to, or None.

    In a tree like the parameters, that is the parameter at the path of the leaf, or above it. In the state of another
    library, it is the parameter whose path is the end of the leaf's path. With `of_same_shape`, parameters of another
    shape don't count.
    """
    leaves = named_leaves(params)
    indices = {names: i for i, (names, _) in enumerate(leaves)}
    out = []
    for (kind, names), (_, x) in zip(owning_paths(state), named_leaves(state), strict=True):
        owner = _owner(kind, names, x, indices)
        is_other = owner is not None and of_same_shape and leaves[owner][1].shape != x.shape
        out.append(None if is_other else owner)
    return out


def _owner(kind: SectionKind, names: Names, x: Any, indices: Mapping[Names, int]) -> int | None:
    if kind == "params":
        prefix = longest_prefix(names, indices)
        return None if prefix is None else indices[prefix]
    if kind == "shared" or jnp.issubdtype(x.dtype, jnp.integer):  # a counter of another library has no parameter
        return None
    # The longest end that is a path, because the path of one parameter may be the end of another one.
    ends = (names[start:] for start in range(len(names) + 1))
    return next((indices[end] for end in ends if end in indices), None)


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: PyTree,
    /,
    *rest: PyTree,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """Map a function over all arrays in a state that belong to a parameter, such as the moments.

        def place(x, p):  # put each moment where its parameter is
            return jax.device_put(x, p.sharding) if x.shape == p.shape else x

        state = tree.map_params(optimizer, place, state, params)

    An array need not have the shape of its parameter: Adafactor keeps row and column means, and SM3 several arrays per
    parameter. Pass the parameters in `rest` to compare. Where the state holds nothing for a parameter, for example
    under a mask, `f` is not called.

    Args:
        initable: the transform. It is used only for states of other libraries, which don't declare what they hold: its
            `init`, or this argument itself if it is a function, is called with parameters that have no leaves.
        f: function of an array of the state, and of the value at its parameter in each tree of `rest`.
        state: the state.
        rest: trees with the structure of the parameters.
        transform_non_params: function of every other leaf, such as a step counter; by default they are kept.
        is_leaf: where to stop within a tree like the parameters, as in `jax.tree.map`.

    Raises:
        ValueError: if a tree of `rest` has no value for an array of the state.
    """
    single = unstack(state)  # `f` is a function of the array of one parameter, and a stack holds those of several
    if jtu.tree_structure(single) != jtu.tree_structure(state):
        mapped = map_params(initable, f, single, *rest, transform_non_params=transform_non_params, is_leaf=is_leaf)
        # A function such as one that returns shardings changes what is in the tree, which then has no stacked form.
        return stack_like(mapped, state) if _is_like(mapped, single) else mapped
    # The probe costs an `init`, which only states without declarations need.
    kinds = {kind for kind, _ in owning_paths(state)}
    probe = init_even_if_empty(initable, _NoParams()) if "unknown" in kinds else None

    def section(kind: SectionKind, names: Names, value: PyTree) -> PyTree:
        if kind == "params":
            return _mapped(f, ".".join(names), value, rest, is_leaf)
        return value if transform_non_params is None else jtu.tree_map(transform_non_params, value)

    return map_sections(section, state, probe)


def init_even_if_empty(initable: Any, params: PyTree) -> PyTree:
    """The initial state of a transform, ours or another's, for parameters that may have nothing to train."""
    init = getattr(initable, "init", initable)
    is_entry = hasattr(init, "boundary")  # of ours, which would refuse them
    return init(params, allow_empty=True) if is_entry else init(params)


def _is_like(tree: PyTree, other: PyTree) -> bool:
    """Whether two trees have the same structure, and arrays of the same shapes and dtypes."""

    def kinds(tree: PyTree) -> list[Any]:
        return [(getattr(x, "shape", None), getattr(x, "dtype", None)) for x in jtu.tree_leaves(tree)]

    return jtu.tree_structure(tree) == jtu.tree_structure(other) and kinds(tree) == kinds(other)


def _mapped(
    f: Callable[..., Any],
    where: str,
    value: PyTree,
    rest: tuple[PyTree, ...],
    is_leaf: Callable[[Any], bool] | None,
) -> PyTree:
    """Map over one tree like the parameters, with the values that the other trees have there."""
    leaves, treedef = jtu.tree_flatten(value, is_leaf=is_leaf)
    columns = []
    for tree in rest:
        try:
            column = treedef.flatten_up_to(tree)
        except ValueError:  # absent leaves, several arrays for one parameter, containers of another type
            column = None
        # A single array also fits where `tree` has a subtree, by `flatten_up_to`, but the subtree is not its value.
        if column is None or (jtu.treedef_is_leaf(treedef) and not jtu.all_leaves([tree])):
            column = _beside(tree, where, value, is_leaf)
        columns.append(column)
    return treedef.unflatten([f(*xs) for xs in zip(leaves, *columns, strict=True)])


def _beside(tree: PyTree, where: str, value: PyTree, is_leaf: Callable[[Any], bool] | None) -> list[Any]:
    """The value that `tree` has at each leaf of `value`, or above it."""
    leaves = dict(named_leaves(tree, with_none=True))
    out = []
    for path, _ in jtu.tree_leaves_with_path(value, is_leaf=is_leaf):
        names = key_names(path)
        at = longest_prefix(names, leaves)
        if at is None:
            paths = [".".join(n) for n in leaves]
            raise ValueError(
                f"`map_params`: the state has `{'.'.join(names)}` in `{where}`, and one of the trees has nothing "
                f"there; it has {listing(paths)}. The trees must have the structure of the parameters. If `{where}` is "
                f"not a tree like them, declare its field with `{where.rpartition('.')[2]}: ... = modulax.shared()`."
            )
        out.append(leaves[at])
    return out

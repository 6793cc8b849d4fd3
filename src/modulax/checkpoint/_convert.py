"""Put stored arrays into the leaves of a template: same shape, same dtype, same placement."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._plugin.trees import Names, join, split
from ._low_bit import Side
from ._names import Report, Template, match, stored
from ._renaming import Rename, leaving_out
from ._stored import as_number_for, as_stored, has_dtype_of, is_key, plain


def check(pairs: Sequence[tuple[str, str, Any, Any]], names: Collection[str] = (), rename: Rename = None) -> None:
    """Check that stored arrays fit leaves.

    Args:
        pairs: the name of each leaf and of its stored array, the leaf, and the shape and dtype of the array.
        names: all names in the checkpoint, if some may be left out.
        rename: the rules of the user, which are part of what is proposed then.

    Raises:
        ValueError: if a shape or dtype differs. Where either side is a Python number, the precision may differ.
    """
    others = [pair for pair in pairs if tuple(pair[3].shape) != as_stored(pair[2]).shape]
    if others:
        name, source, leaf, saved = others[0]
        more = f"; {len(others)} arrays differ in shape" if others[1:] else ""
        rules = leaving_out([x[1] for x in others], names, rename) if names else ""
        remedy = f", or leave out what differs by `rename={rules}` and `strict=False`" if rules else ""
        raise ValueError(
            f"`{source}` has shape {tuple(saved.shape)} in the checkpoint, but `{name}` of the template has "
            f"{as_stored(leaf).shape}{more}. Pass a template with the shapes that were saved{remedy}."
        )
    for name, source, leaf, saved in pairs:
        if not has_dtype_of(saved, leaf):
            raise ValueError(
                f"`{source}` is {np.dtype(saved.dtype)} in the checkpoint, but `{name}` of the template is "
                f"{as_stored(leaf).dtype}. `restore` does not cast: pass a template with the dtype that was saved, and "
                f"cast the result."
            )


def into(leaf: Any, value: Any, *, copy: bool) -> Any:
    """Convert a stored value to the kind of the leaf: a number, a NumPy array, or a JAX array on the same devices.

    Args:
        leaf: the leaf of the template.
        value: the stored value.
        copy: whether the value is used elsewhere too, so that a JAX array needs memory of its own: donation would
            delete both.
    """
    # NumPy files keep the bytes of bfloat16 and not its name.
    if isinstance(value, np.ndarray) and value.dtype.type is np.void:
        value = value.view(as_stored(leaf).dtype)
    if isinstance(leaf, (bool, int, float, complex)):
        return type(leaf)(np.asarray(value).item())
    value = as_number_for(value, leaf)
    if isinstance(leaf, np.generic):
        return np.asarray(value)[()]
    if isinstance(leaf, np.ndarray):
        value = np.array(value)
        value.setflags(write=leaf.flags.writeable)
        return value
    if is_key(leaf):
        impl = jax.random.key_impl(jnp.empty((), leaf.dtype))  # the leaf may be a `ShapeDtypeStruct`
        value = jax.random.wrap_key_data(jnp.asarray(value), impl=impl)
    if copy and not isinstance(value, jax.Array):
        value = np.array(value)  # JAX may use the memory of an array of NumPy, `may_alias` or not
    return jax.device_put(value, _place(leaf, value), may_alias=False if copy else None)


def _place(leaf: Any, value: Any) -> Any:
    """The sharding of the leaf; or None where no one has placed it, so that JAX combines it with any other arrays."""
    if isinstance(leaf, Tracer) or isinstance(value, Tracer):
        return None
    if leaf.sharding is None or getattr(leaf, "committed", True):
        return leaf.sharding
    kind = leaf.sharding.memory_kind
    is_elsewhere = isinstance(value, jax.Array) and value.sharding.memory_kind != kind
    return value.sharding.with_memory_kind(kind) if is_elsewhere else None


def fill(
    template: Template,
    saved: Mapping[Names, Any],
    fetch: Callable[[dict[Names, Any]], Mapping[Names, Any]],
    rename: Rename,
    strict: bool,
    *,
    lent: bool = False,
) -> tuple[PyTree, Report]:
    """Fill the leaves of a template, and report what became of the names.

    Args:
        template: the tree to fill.
        saved: the stored arrays by names, with shape and dtype.
        fetch: function that reads arrays; it is called with the template's leaf for every array to read.
        rename: rules for the names.
        strict: whether the names must agree.
        lent: whether `fetch` returns arrays of someone else, which are copied.

    Raises:
        ValueError: if names, shapes or dtypes don't agree, or a leaf that isn't stored has no value to keep.
    """
    ours, theirs = Side(template.arrays, saved), Side(saved, template.arrays)

    def are_equal(names: list[Names]) -> bool:
        """Read the values of several arrays, unless there is only one, and compare them."""
        specs = {x: jax.ShapeDtypeStruct(theirs.arrays[x].shape, theirs.arrays[x].dtype) for x in names}
        values = fetch(specs) if len(names) > 1 else {}
        return len({np.asarray(values[name]).tobytes() for name in values if name in specs}) <= 1

    found = match(template, ours.arrays, theirs.arrays, rename, strict, are_equal)
    report = Report(
        {join(part): join(source) for name, source in found.sources.items() for part in ours.parts(name)},
        tuple(map(join, ours.expanded(found.fresh))),
        tuple(map(join, theirs.expanded(found.unused))),
        found.proposed,
        tuple(found.remarks),
    )
    return _filled(template, ours, theirs, found.sources, fetch, lent, rename), report


def fill_by_name(
    template: Template,
    saved: Mapping[Names, Any],
    fetch: Callable[[dict[Names, Any]], Mapping[Names, Any]],
    *,
    lent: bool = False,
) -> PyTree:
    """Fill the leaves of a template that have a stored array of the same name; the arguments are those of `fill`."""
    ours, theirs = Side(template.arrays, saved), Side(saved, template.arrays)
    return _filled(template, ours, theirs, {name: name for name in ours.arrays if name in theirs.arrays}, fetch, lent)


def _filled(
    template: Template,
    ours: Side,
    theirs: Side,
    sources: Mapping[Names, Names],
    fetch: Callable[[dict[Names, Any]], Mapping[Names, Any]],
    lent: bool,
    rename: Rename = None,
) -> PyTree:
    """Read arrays and put them into leaves of the template; the others keep their values."""
    wanted: dict[Names, Any] = {}
    pairs = [(join(name), join(source), ours.arrays[name], theirs.arrays[source]) for name, source in sources.items()]
    check(pairs, list(map(join, theirs.arrays)), rename)
    for name, source in sources.items():
        wanted |= theirs.wanted(source, ours.arrays[name])
    _check_values(template, ours.expanded(name for name in ours.arrays if name not in sources))
    values, new = fetch(wanted), {name: _phase(template.arrays[name]) for name in ours.phases}
    for name, source in sources.items():
        new |= ours.written(name, theirs.read(source, values))
    first = {id(x): name for name, x in reversed(new.items())}  # one array of the checkpoint may fill several leaves
    filled = {name: into(template.arrays[name], x, copy=lent or first[id(x)] != name) for name, x in new.items()}
    return template.filled(filled)


def _phase(leaf: Any) -> Any:
    """The phase of stochastic rounding that the checkpoint doesn't have: that of the template, or any."""
    return np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def _check_values(template: Template, names: Iterable[Names]) -> None:
    """Check that the leaves that the checkpoint doesn't have have values to keep."""
    for name in names:
        if isinstance(template.arrays[name], jax.ShapeDtypeStruct):
            raise ValueError(
                f"`{join(name)}` of the template is a `jax.ShapeDtypeStruct` without values, and the checkpoint does "
                f"not have it. Put an array there to keep."
            )


def state_dict(tree: PyTree) -> dict[str, Any]:
    """Return the arrays and numbers of a tree by flat name, for `numpy.savez`, safetensors, or another library.

        np.savez("checkpoint.npz", **state_dict({"params": params, "state": state}))

    Typed random keys are converted to their data. Functions, strings and other leaves that are not arrays are left out.

    Args:
        tree: models, optimizers, states, counters, in any nesting.

    Raises:
        ValueError: if two leaves have the same name.
    """
    return {name: plain(x) for name, x in stored(tree).items()}


def load_state_dict(
    template: PyTree, flat: Mapping[str, Any], *, rename: Rename = None, strict: bool = True
) -> tuple[PyTree, Report]:
    """Fill the leaves of a template from arrays by flat name; the counterpart of `state_dict`.

    Args:
        template: a tree of the desired structure, with arrays or `jax.ShapeDtypeStruct` as leaves.
        flat: arrays by name.
        rename: see `restore`.
        strict: see `restore`.

    Returns:
        The filled tree, and a `Report`.

    Raises:
        ValueError: if names, shapes or dtypes don't agree, see `restore`.
    """
    saved = {split(name): x if isinstance(x, jax.Array) else np.asarray(x) for name, x in flat.items()}
    return fill(Template(template), saved, lambda _: saved, rename, strict, lent=True)

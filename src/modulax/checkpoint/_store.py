"""Checkpoints on disk, in orbax's format.

`save` writes nested dicts of arrays. Their keys are escaped, because orbax joins them by dots and would otherwise
confuse a key `a.b` with a path. A checkpoint that replaces an old one is written next to it, and takes its name when
complete.

`restore` also reads what orbax's own checkpointers wrote from the same trees. It turns every path in the file into
names of the template: `unescaped` undoes the escaping, `_split_keys` splits keys that are whole paths (those of
`modulax.nnx.Optimizer`), and `_unboxed` drops the `value` that orbax appends for NNX variables. Then `fill`
(`_convert.py`) matches the names and calls `fetch`, which reads only the arrays that are needed, directly onto the
devices of the template.
"""

import contextlib
import importlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._plugin.messages import explained, listing
from .._plugin.trees import Names, join, key_names, split
from ._convert import fill
from ._names import Report, Template
from ._renaming import Rename
from ._stored import as_stored, is_key, nested, plain

_ID = r"\.[0-9a-f]{32}"  # in the names beside a checkpoint that is replaced


def _orbax() -> Any:
    """Import orbax, which is optional."""
    try:
        return importlib.import_module("orbax.checkpoint")
    except ImportError as error:
        raise ImportError("Checkpoints on disk need orbax: `pip install modulax[orbax]`.") from error


def save(path: str | os.PathLike[str], tree: PyTree, *, overwrite: bool = False) -> None:
    """Save the arrays and numbers of a tree as an orbax checkpoint, and return once they are on disk.

    The checkpoint appears under its path only when it is complete. With `overwrite`, `restore` reads the old checkpoint
    until then. The next `save` to the same path removes what a killed one left beside it, after a minute.

    To save in the background, use orbax itself, which accepts optimizers and states; `restore` reads the result.

    Args:
        path: the folder to write; it must not exist unless `overwrite` is set.
        tree: models, optimizers, states, counters, in any nesting.
        overwrite: whether to replace an existing checkpoint.

    Raises:
        ImportError: if orbax is not installed.
        ValueError: if the tree has no arrays or numbers, or two leaves have the same name.
        FileExistsError: if the path exists and `overwrite` is not set, or if it is not a checkpoint.
        OSError: if the checkpoint can't be written.
    """
    ocp = _orbax()
    target = Path(os.path.realpath(path))  # of a link, what it leads to
    # Without escapes, orbax would write `{"a.b": x}` and `{"a": {"b": y}}` as one array.
    flat = {_escaped(names): _as_array(plain(x)) for names, x in Template(tree).arrays.items()}
    if not flat:
        raise ValueError("`save(tree=...)` must contain arrays or numbers.")
    if target.exists():
        _check_old(target, overwrite)
    # The old checkpoint is replaced only when the new one is complete.
    fresh = target.with_name(f"{target.name}.{uuid.uuid4().hex}") if target.exists() else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(fresh, nested(flat))
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and not re.match("[A-Z_]+: ", str(error)):  # TensorStore's failures
            raise
        _remove_leftovers(fresh, seconds=0.0)
        raise OSError(f"The checkpoint could not be written to `{target}`: {error}. Nothing was changed.") from error
    if fresh != target:
        old = target.with_name(f"{fresh.name}.old")
        # `_folder` finds this name if the process is killed before the second `rename`.
        target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old)


def _check_old(target: Path, overwrite: bool) -> None:
    """Raise an error if what exists at a path must not be replaced."""
    if not overwrite:
        raise FileExistsError(f"`{target}` already exists. Pass `overwrite=True` to replace it.")
    if not _may_be_replaced(target):
        raise FileExistsError(
            f"`{target}` is not a checkpoint, so that `overwrite=True` doesn't delete it. Give another path, or remove "
            f"it first."
        )


def _remove_leftovers(target: Path, seconds: float = 60.0) -> None:
    """Remove what a `save` to this path left that was killed, if nobody has written to it for a time."""
    is_ours = re.compile(rf"{re.escape(target.name)}({_ID}(\.old)?|({_ID})?\.orbax-checkpoint-tmp.*)").fullmatch
    for x in target.parent.iterdir() if target.parent.is_dir() and jax.process_index() == 0 else ():
        # `_folder` finds the old checkpoint where there is no other one.
        if is_ours(x.name) and (target.exists() or not x.name.endswith(".old")):
            with contextlib.suppress(OSError):  # another process removes it too
                if time.time() - max(inside.stat().st_mtime for inside in (x, *x.rglob("*"))) >= seconds:
                    shutil.rmtree(x)


def _as_array(x: Any) -> Any:
    """Convert numbers to NumPy arrays."""
    return x if isinstance(x, jax.Array) else np.asarray(x)


def _escaped(names: Names) -> Names:
    """The keys on the disk for the names of an array."""
    return tuple(join((name,)) for name in names)


def unescaped(keys: Names) -> Names:
    """The names in the keys of a path on the disk, of which only those that `save` escaped are unescaped."""

    def name(key: str) -> str:
        names = split(key)
        return names[0] if len(names) == 1 and join(names) == key else key

    return tuple(map(name, keys))


@explained
def restore(
    path: str | os.PathLike[str], template: PyTree, *, rename: Rename = None, strict: bool = True
) -> tuple[PyTree, Report]:
    """Restore a checkpoint into the structure of a template, by name.

        tree, report = restore(path, {"params": params, "state": optimizer.init(params)})

    It reads checkpoints of `save` and of orbax's own checkpointers, including the folder of one step of a
    `CheckpointManager`.

    Args:
        path: the folder of the checkpoint.
        template: a tree of the desired structure, with arrays or `jax.ShapeDtypeStruct` as leaves. Arrays are restored
            with the shape, dtype and sharding of the template; other leaves are taken from it. A Python number is
            restored in the dtype of a scalar in the template.
        rename: renamed parts, as a mapping from old to new: dotted paths, which may occur anywhere in a name.
            `{"encoder": "backbone"}` renames a module in the parameters and in all moments. Or a function from old to
            new names that returns None for names to drop.
        strict: whether both must have the same names. Otherwise what both have is restored, the rest comes from
            the template, and states are recognized after they were put into a container or taken out of one, or divided
            among groups of parameters. A count is restored only together with all moments that it counts for, so that
            a state with moments of new parameters begins fresh.

    Returns:
        The filled tree, and a `Report` of what was restored, what stayed fresh, and what was not used.

    Raises:
        ImportError: if orbax is not installed.
        FileNotFoundError: if there is no checkpoint at the path.
        ValueError: if the checkpoint can't be read, names don't agree with the template (unless `strict=False`), or a
            shape or dtype differs.
    """
    with opened(path) as (paths, specs, read):
        form = Template(template)
        names = [_unboxed(_split_keys(keys, form.joined), form.arrays) for keys in paths]

        def fetch(wanted: dict[Names, Any]) -> Mapping[Names, Any]:
            return dict(zip(names, read([wanted.get(name) for name in names]), strict=True))

        return fill(form, dict(zip(names, specs, strict=True)), fetch, rename, strict)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[list[Names], list[Any], Callable[[list[Any]], list[Any]]]]:
    """Open a checkpoint: the keys of its arrays on the disk, their shapes and dtypes, and a function that reads them.

    The function takes a leaf of a template for every array that it should read, and None for the others.
    """
    ocp = _orbax()
    folder = _folder(Path(os.path.abspath(path)))
    _check_is_one(folder)
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        try:
            tree = _tree(handler.metadata(folder))
        except Exception as error:
            raise _damaged(folder, error) from error
        specs: list[Any]
        treedef: Any
        specs, treedef = jtu.tree_flatten(tree)

        def read(leaves: list[Any]) -> list[Any]:
            # orbax does not read a placeholder from the disk.
            item = [ocp.PLACEHOLDER if leaf is None else as_stored(leaf) for leaf in leaves]
            how = [_how(ocp, leaf, saved) for leaf, saved in zip(leaves, specs, strict=True)]
            arguments = ocp.args.PyTreeRestore(treedef.unflatten(item), treedef.unflatten(how))
            try:
                return treedef.flatten_up_to(handler.restore(folder, args=arguments))
            except Exception as error:
                raise _damaged(folder, error) from error

        yield [key_names(path) for path, _ in jtu.tree_leaves_with_path(tree)], specs, read


def _split_keys(keys: Names, joined: set[Names]) -> Names:
    """The names in the keys of a path on the disk, of which some are whole paths themselves.

    Under such a key, `modulax.nnx.Optimizer` has arrays with whole paths as keys again, in an NNX variable or bare.
    """
    names = unescaped(keys)
    at = next((i for i in range(len(keys)) if names[:i] in joined), None)
    if at is None:
        return names
    inside = at + 1 + (keys[at + 1 : at + 2] == ("value",) and len(keys) > at + 2)
    whole = keys[at : at + 1] + keys[inside : inside + 1]
    return names[:at] + tuple(name for key in whole for name in split(key)) + names[inside + 1 :]


def _unboxed(names: Names, wanted: Mapping[Names, Any]) -> Names:
    """Drop the `value` that orbax appends for an NNX variable, whose box is not part of a path."""
    inside = names[:-1] if names[1:] and names[-1] == "value" else names or ("",)
    if inside in wanted:
        return names if names in wanted else inside
    return names if any(other[1:] and other[-1] == "value" for other in wanted) else inside


def _tree(metadata: Any) -> PyTree:
    """The tree of shapes and dtypes in orbax's metadata."""
    tree = getattr(metadata, "tree", metadata)
    if not tree:
        raise ValueError("it holds no tree of arrays")
    return tree


def _how(ocp: Any, leaf: Any, saved: Any) -> Any:
    """How orbax should read an array: in the dtype that was saved, onto the devices of the template."""
    is_number = not saved.shape and leaf is not None and saved.dtype != as_stored(leaf).dtype  # JAX would round it
    sharding = None if is_key(leaf) or is_number else getattr(leaf, "sharding", None)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=tuple(saved.shape), dtype=saved.dtype)


def _folder(path: Path) -> Path:
    """The folder with the arrays: the given one, or the one of the only item that an orbax manager saved."""
    if not path.is_dir():
        # Left by a `save` that was killed while replacing it. Other names are backups of the user.
        is_ours = re.compile(rf"{re.escape(path.name)}{_ID}\.old").fullmatch
        kept = [x for x in (path.parent.iterdir() if path.parent.is_dir() else ()) if is_ours(x.name)]
        if not kept:
            raise FileNotFoundError(f"There is no checkpoint at `{path}`.")
        path = kept[0]
    inside = _inside(path)
    return inside[0] if len(inside) == 1 and not (path / "_METADATA").exists() else path


def _inside(path: Path) -> list[Path]:
    """The folders in a folder that orbax wrote a tree to."""
    return sorted(x.parent for x in path.glob("*/_METADATA"))


def _check_is_one(path: Path) -> None:
    """Raise an error for a folder of several checkpoints, such as that of a manager, or of a step with its items."""
    items = _inside(path)
    steps = sorted((x for x in path.iterdir() if _inside(x)), key=lambda x: [*map(int, re.findall(r"\d+", x.name)), 0])
    if (path / "_METADATA").exists() or not (items or steps):
        return
    found = items or (_inside(steps[-1]) if len(_inside(steps[-1])) > 1 else steps[-1:])
    raise ValueError(f"`{path}` is a folder of checkpoints. Give the path of one: {listing(found)}.")


def _may_be_replaced(path: Path) -> bool:
    """Whether a path is a checkpoint or an empty folder, and not something else of the user."""
    return path.is_dir() and ((_folder(path) / "_METADATA").exists() or not any(path.iterdir()))


def _damaged(path: Path, error: Exception) -> ValueError:
    """The error for a checkpoint that can't be read."""
    return ValueError(
        f"The checkpoint at `{path}` cannot be read. It is damaged, incomplete, or not a checkpoint of arrays; "
        f"use an earlier one. The error from orbax: {str(error).strip() or type(error).__name__}"
    )

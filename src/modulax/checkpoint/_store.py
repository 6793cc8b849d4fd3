"""Checkpoints on disk, as ordinary orbax trees."""

import contextlib
import importlib
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ..tree._paths import join, key_names, split
from ._convert import as_stored, fill, is_key, plain
from ._names import Rename, Report, joined_prefixes, stored


def _orbax() -> Any:
    try:
        return importlib.import_module("orbax.checkpoint")
    except ImportError as error:
        raise ImportError("Checkpoints on disk need orbax: `pip install modulax[orbax]`.") from error


def save(path: str | os.PathLike[str], tree: PyTree, *, overwrite: bool = False) -> None:
    """Writes the arrays and numbers of a tree as an orbax checkpoint, and returns when they are on the disk.

    The checkpoint appears under its path when it is complete. With `overwrite` the old one is restored until then.

    For saving in the background use orbax itself, which takes optimizers and states as they are; `restore` reads what
    it wrote.

    Args:
        path: the folder to write; it must not exist.
        tree: models, optimizers, states, counters, in any nesting.
        overwrite: whether to replace an existing checkpoint.
    """
    ocp = _orbax()
    target = Path(os.path.abspath(path))
    flat = {name: _as_array(plain(x)) for name, x in stored(tree).items()}
    if not flat:
        raise ValueError("`save` was given a tree without arrays or numbers.")
    if target.exists() and not overwrite:
        raise FileExistsError(f"There is something at `{target}` already. Give `overwrite=True` to replace it.")
    fresh = target.with_name(f"{target.name}.{uuid.uuid4().hex}") if target.exists() else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(fresh, _nested(flat))
    except OSError as error:
        raise OSError(f"The checkpoint could not be written to `{target}`: {error}. Nothing was changed.") from error
    if fresh != target:
        old = target.with_name(f"{fresh.name}.old")
        target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old) if old.is_dir() else old.unlink()


def _as_array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else np.asarray(x)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts by the keys of the names, escaped: orbax joins them by dots, and would write two arrays as one."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = (join((key,)) for key in split(name))
        at = out
        for key in outer:
            at = at.setdefault(key, {})
        at[last] = value
    return out


def _flattened(tree: PyTree) -> list[tuple[tuple[str, ...], Any]]:
    """The leaves of a tree of orbax's with the keys of their paths; keys that orbax wrote itself are not escaped."""

    def key(name: str) -> str:
        keys = split(name)
        return keys[0] if len(keys) == 1 and join(keys) == name else name

    return [(tuple(map(key, key_names(path))), x) for path, x in jtu.tree_leaves_with_path(tree)]


def restore(
    path: str | os.PathLike[str], template: PyTree, *, rename: Rename = None, strict: bool = True
) -> tuple[PyTree, Report]:
    """Reads a checkpoint into the structure of a template, by name.

        tree, report = restore(path, {"params": params, "state": optimizer.init(params)})

    Reads what `save` wrote, and what orbax's own checkpointers wrote, the folder of one step of a
    `CheckpointManager` included.

    Args:
        path: the folder of the checkpoint.
        template: the tree that is wanted, with arrays or `jax.ShapeDtypeStruct` at the leaves. Arrays come back with
            the shape, the dtype and the sharding of the template; what is no array is taken from it.
        rename: what is called otherwise now, as a mapping from old to new; keys of a path, joined by dots, which may
            stand anywhere in a name: `{"encoder": "backbone"}` renames a module in the parameters and in all moments.
            Or a function from old to new names, None for what is not wanted.
        strict: whether both must have the same names. If not, what both have is restored, the rest of the template
            is kept, and states of transforms are found again when they were put into a chain or taken out of one.

    Returns:
        the filled tree, and a `Report` of what was restored, kept and unused.
    """
    ocp = _orbax()
    folder = _folder(Path(os.path.abspath(path)))
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        try:
            tree = _tree(handler.metadata(folder))
        except Exception as error:
            raise _damaged(folder, error) from error
        wanted_names = stored(template)
        joined = joined_prefixes(template)
        names = [_unboxed(join(_taken_apart(keys, joined)), wanted_names) for keys, _ in _flattened(tree)]
        specs, treedef = jtu.tree_flatten(tree)
        saved = dict(zip(names, specs, strict=True))

        def fetch(wanted: dict[str, Any]) -> Mapping[str, Any]:
            item = [as_stored(wanted[name]) if name in wanted else ocp.PLACEHOLDER for name in names]
            how = [_how(ocp, wanted.get(name), saved[name]) for name in names]
            arguments = ocp.args.PyTreeRestore(treedef.unflatten(item), treedef.unflatten(how))
            try:
                found = handler.restore(folder, args=arguments)
            except Exception as error:
                raise _damaged(folder, error) from error
            return dict(zip(names, treedef.flatten_up_to(found), strict=True))

        return fill(template, saved, fetch, rename, strict)


def _taken_apart(keys: tuple[str, ...], joined: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The keys in a checkpoint that orbax wrote, where a whole path is one key as any other."""
    at = next((i for i in range(len(keys)) if keys[:i] in joined), None)
    return keys if at is None else keys[:at] + split(keys[at]) + keys[at + 1 :]


def _unboxed(name: str, wanted: Mapping[str, Any]) -> str:
    """The name without the `value` that orbax adds for an NNX variable, which is a box and no part of a path."""
    inside = name.removesuffix(".value")
    if inside in wanted:
        return name if name in wanted else inside
    return name if any(other.endswith(".value") for other in wanted) else inside


def _tree(metadata: Any) -> PyTree:
    """The tree of shapes and dtypes in what orbax says of a checkpoint."""
    tree = getattr(metadata, "tree", metadata)
    if not tree:
        raise ValueError("it holds no tree of arrays")
    return tree


def _how(ocp: Any, leaf: Any, saved: Any) -> Any:
    """How orbax reads one array: in the dtype that was saved, onto the devices of the template."""
    sharding = None if is_key(leaf) else getattr(leaf, "sharding", None)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=tuple(saved.shape), dtype=saved.dtype)


def _folder(path: Path) -> Path:
    """Where the arrays are: in the folder, or in that of the one item that a manager of orbax saved."""
    if not path.is_dir():
        kept = list(path.parent.glob(f"{path.name}.*.old"))  # by a `save` that was killed while it replaced it
        if not kept:
            raise FileNotFoundError(f"There is no checkpoint at `{path}`.")
        path = kept[0]
    if (path / "_METADATA").exists():
        return path
    inside = [p for p in path.iterdir() if (p / "_METADATA").exists()]
    return inside[0] if len(inside) == 1 else path


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"The checkpoint at `{path}` cannot be read. It is damaged, was not finished, or is no checkpoint of arrays; "
        f"take an earlier one. What orbax said: {str(error).strip() or type(error).__name__}"
    )

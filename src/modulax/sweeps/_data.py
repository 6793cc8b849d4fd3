"""The data of a sweep: every segment is read once for all members, by a thread that is one segment ahead."""

import contextlib
import itertools
import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._plugin.arrays import enable_x64
from .._plugin.trees import dotted
from ..authoring import default_float
from ._folder import Folder
from ._program import tree_difference
from ._training import Placement, check_arguments, placed, shape_of

_Read: TypeAlias = tuple[list[jax.Array], bytes | None]  # leaves on the devices, and the cursor after them
CURSORS = ("state_dict", "load_state_dict"), ("get_state", "set_state")  # of torch's loaders, of grain's iterators


class _Function:
    """A function of the number of a segment, which returns its data, or a generator of those from there on."""

    needs_cursor = False

    def __init__(self, source: Any):
        check_arguments("data", source, "data(segment)")
        self._source = source

    def begin(self, segment: int, state: Any) -> Iterator[Any]:
        """An iterator from a segment on."""
        item = self._source(segment)
        others = map(self._source, itertools.count(segment + 1))
        return item if isinstance(item, Iterator) else itertools.chain([item], others)

    def cursor(self) -> bytes | None:
        """None: the number of the segment is enough."""


class _Loader:
    """An iterable with an item for each segment."""

    needs_cursor = True

    def __init__(self, source: Any):
        self._source, self._items = source, iter(source)

    def begin(self, segment: int, state: Any) -> Iterator[Any]:
        """An iterator from a segment on, before which this was its state."""
        if of_loader := _cursor_of(self._source):
            of_loader[1](state)
            self._items = iter(self._source)
        elif _cursor_of(self._items):
            self._items = iter(self._source)
            _cursor_of(self._items)[1](state)
        return self._items

    def cursor(self) -> bytes | None:
        """The pickled state, if it can say that."""
        found = _cursor_of(self._source) or _cursor_of(self._items)
        return pickle.dumps(found[0]()) if found else None


def _cursor_of(x: Any) -> Any:
    """The methods that return a state and go to one, or None."""
    names = next((names for names in CURSORS if all(hasattr(x, name) for name in names)), None)
    return names and [getattr(x, name) for name in names]


class Data:
    """The data of the segments, which are the same for all members and seeds.

    Args:
        source: the `data` of the user: a function or an iterable.
        where: the devices, each of which gets a copy.
    """

    def __init__(self, source: Any, where: Placement):
        self._name = type(source).__name__
        is_whole = isinstance(source, (list, tuple, dict)) or hasattr(source, "__array__")
        if is_whole or not (callable(source) or isinstance(source, Iterable)):
            raise TypeError(
                f"`data` must be a function of the number of a segment, such as `lambda segment: x[segment]`, or an "
                f"iterator with an item for each segment; got {self._name}. If the data fit on the device, let the "
                f"training close over them."
            )
        self.source = source
        self._source = _Loader(source) if isinstance(source, Iterable) else _Function(source)
        self._first = self._source.cursor()  # before segment 0
        self._items: Iterator[Any] = iter(())
        self._position = -1  # the segment that the items give next; none
        self._where, self._is_double = where, default_float() == np.float64
        self._folder, self._total = Folder(None), 0
        self._pool: ThreadPoolExecutor
        self._ahead: tuple[int, Future[_Read]] | None = None
        self.shapes: PyTree = None
        self._now: tuple[int, _Read] | None = (0, self._read(0))
        self.size = sum(x.nbytes for x in self._now[1][0])

    def check_goes_back(self, why: str) -> None:
        """Raise an error if the source can't go back to a segment.

        Args:
            why: what needs it, as the beginning of a sentence.
        """
        if self._source.needs_cursor and self._first is None:
            raise ValueError(
                f"{why}, and `data` is a {self._name} without a cursor, by which it would go back to a segment. Give a "
                f"function, `data(segment)`; or an iterator with `get_state()` and `set_state(state)`, such as those "
                f"of grain, or with `state_dict()` and `load_state_dict(state)`, such as torch's StatefulDataLoader."
            )

    @contextlib.contextmanager
    def reading(self, folder: Folder, total: int) -> Iterator[None]:
        """Read one segment ahead of a sweep, until it ends.

        Args:
            folder: the folder, which has the cursors of earlier calls.
            total: the number of segments.
        """
        if folder.path is not None:
            self.check_goes_back(f"A sweep in {folder.name} may be resumed")
        if (stored := folder.cursor(0)) not in (None, self._first):  # all runs of a folder get the same data
            self._first, self._now, self._position = stored, None, -1
        self._folder, self._total = folder, total
        self._pool = ThreadPoolExecutor(1, "data-of-a-sweep")
        try:
            yield
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._now = self._ahead = None

    def take(self, segment: int) -> list[jax.Array]:
        """The leaves of the data of a segment. From now on, the next one is read."""
        if self._now is None or self._now[0] != segment:
            ahead, self._now, self._ahead = self._ahead, None, None  # frees the memory of the last segment
            if ahead is None or ahead[0] != segment:
                ahead = segment, self._pool.submit(self._read, segment)
            self._now = segment, ahead[1].result()
        if self._ahead is None and segment + 1 < self._total:
            self._ahead = segment + 1, self._pool.submit(self._read, segment + 1)
        leaves, cursor = self._now[1]
        self._folder.keep_cursor(0, self._first)
        self._folder.keep_cursor(segment + 1, cursor)
        return leaves

    def _read(self, segment: int) -> _Read:
        """Read the data of a segment, and put them on the devices."""
        try:
            if self._position != segment:
                self._items = self._source.begin(segment, self._state(segment))
            self._position = -1  # if it fails
            tree = next(self._items)
            self._position, cursor = segment + 1, self._source.cursor()
            leaves = self._on_devices(tree)
            self._check_shapes(jtu.tree_structure(tree).unflatten(leaves))
            return leaves, cursor
        except StopIteration as error:
            raise ValueError(
                f"`data` has ended: there is no item for segment {segment}. Train fewer segments, or repeat the data, "
                f"as `dataset.repeat()` of grain does."
            ) from error
        except Exception as error:
            error.add_note(f"This is an error of `data`, in segment {segment}.")
            raise

    def _state(self, segment: int) -> Any:
        """The state of the source before a segment, if it has one."""
        if not self._source.needs_cursor:
            return None
        cursor = self._folder.cursor(segment) or (self._first if segment == 0 else None)
        if cursor is None and segment > 0:
            raise ValueError(
                f"{self._folder.name} has no cursor of `data` before segment {segment}: its runs were trained with a "
                f"function. Give that, or choose another folder."
            )
        try:
            return None if cursor is None else pickle.loads(cursor)
        except Exception as error:  # of many kinds: whatever broken bytes lead to
            raise self._folder.damaged(f"data/{segment:04d}", error) from error

    def _on_devices(self, tree: PyTree) -> list[jax.Array]:
        with enable_x64(self._is_double):  # a thread has settings of its own
            leaves = [_as_array(dotted(path), x) for path, x in jtu.tree_leaves_with_path(tree)]
            if not leaves:
                raise TypeError(f"`data` must give arrays, in any pytree, and it gave {tree!r}.")
            return [placed(x, self._where.sharding()) for x in leaves]

    def _check_shapes(self, tree: PyTree) -> None:
        """Note the shapes of the first data; raise an error if others differ from them."""
        shapes = jax.tree.map(shape_of, tree)
        self.shapes = shapes if self.shapes is None else self.shapes
        if difference := tree_difference(self.shapes, shapes):
            name, old, new = difference
            raise ValueError(
                f"`data` must have the same structure, shapes and dtypes in all segments, which one program takes: "
                f"`{name}` was {old} and is {new}. Drop a last batch that is smaller, or fill it up and give the "
                f"weights of its rows."
            )


def _as_array(name: str, x: Any) -> Any:
    """An array of JAX as it is; any other as a copy, since the source may write the next segment over it."""
    if isinstance(x, jax.Array):
        return x
    array = np.asarray(x)
    if not jnp.issubdtype(array.dtype, np.number) and array.dtype != bool:
        raise TypeError(
            f"`data` must give arrays of numbers, in any pytree, and `{name or 'the whole'}` is {type(x).__name__} of "
            f"dtype {array.dtype}. Leave it out, or encode it."
        )
    return np.array(array, jax.dtypes.canonicalize_dtype(array.dtype))


def as_data(source: Any, where: Placement) -> Data | None:
    """The data that the user gives, if there are any."""
    return source if source is None or isinstance(source, Data) else Data(source, where)

"""Laws on storage and text: checkpoints, pickles, addresses of hyperparameters, error messages, `repr`."""

import io
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._plugin.arrays import ARRAY_TYPES, is_key_data
from ._case import (
    Case,
    counting_traces,
    expect,
    expect_close,
    expect_same_avals,
    has_numbers,
    map_numbers,
    needs,
    optional,
    other_value,
)


def _expect_to_continue(case: Case, restored: tuple[Any, Any], original: tuple[Any, Any]) -> None:
    """Check that a restored transform and state step exactly as the originals, without a retrace."""
    transform, state = restored
    expect_same_avals(jtu.tree_map(jnp.asarray, restored), jtu.tree_map(jnp.asarray, original), "it")
    state = jtu.tree_map(_in_memory_of, state, original[1])
    grads = case.updates(7)
    expected = case.update(grads, original[1], transform=original[0])
    with counting_traces() as traces:
        found = case.update(grads, state, transform=transform)
    expect_close(found, expected, "the first step afterwards")
    expect(not traces, f"the first step afterwards was traced again: {traces}.")


def _in_memory_of(x: Any, like: Any) -> Any:
    """Move an array that was restored to the device to the memory of the host, if it was there (`Offload`).

    The first step would do so too, as another program.
    """
    sharding = getattr(like, "sharding", None)
    return jax.device_put(x, sharding) if getattr(sharding, "memory_kind", None) == "pinned_host" else x


def _trained(case: Case) -> tuple[Any, Any]:
    """The transform and its state after one step."""
    _, state = case.update(case.updates(), case.init())
    return case.transform, state


def law_equinox_can_save_it(case: Case) -> None:
    """`eqx.tree_serialise_leaves` and back gives the same transform and the same state."""
    original = _trained(case)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, original)
    file.seek(0)
    blank = jtu.tree_map(lambda x: x * x.dtype.type(0), original)
    _expect_to_continue(case, eqx.tree_deserialise_leaves(file, blank), original)


def law_pickle_can_save_it(case: Case) -> None:
    """`pickle` and back gives the same transform and the same state. Lambdas and local classes can't be pickled."""
    original = _trained(case)
    restored = pickle.loads(pickle.dumps(original))
    same = jtu.tree_structure(restored) == jtu.tree_structure(original)
    expect(same, "the structure is another one afterwards.")
    _expect_to_continue(case, restored, original)


@needs(packages=("orbax",))
def law_orbax_can_save_it(case: Case) -> None:
    """Orbax's `StandardCheckpointer` saves and restores the transform and the state."""
    checkpoint = optional("orbax.checkpoint")
    original = _trained(case)
    if not jtu.tree_leaves(original):
        return  # orbax refuses to save an empty tree
    with tempfile.TemporaryDirectory() as folder, checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(folder).resolve() / "state", original)
        checkpointer.wait_until_finished()
        blank = jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), original)
        restored = checkpointer.restore(Path(folder).resolve() / "state", blank)
    _expect_to_continue(case, restored, original)


@needs(has_numbers)
def law_every_number_has_an_address(case: Case) -> None:
    """Each hyperparameter is listed by its path, and can be read and replaced there without changing anything else."""
    numbers = case.numbers()
    transform = case.transform
    addresses = transform.addresses()
    leaves = [x for x in jtu.tree_leaves(transform) if not is_key_data(x)]
    expect(len(numbers) == len(leaves), "two numbers have one path.")
    expect(set(numbers) <= set(addresses), "a listed number has no address.")
    for path, x in numbers.items():
        expect(isinstance(x, ARRAY_TYPES) and np.ndim(x) == 0, f"`{path}` holds {x!r}, which is not a single number.")
        expect(addresses[path](transform) is x, f"the address of `{path}` reads another number.")
        new = other_value(x)
        for how, changed in (
            ("replace", transform.replace(**{path: new})),
            ("tree_at", eqx.tree_at(addresses[path], transform, np.float32(new))),
        ):
            found = changed.hyperparameters()
            expect(np.float32(found[path]) == np.float32(new), f"`{how}` did not change `{path}`.")
            rest = [p for p in numbers if p != path]
            expect(
                all(found[p] is numbers[p] for p in rest) and len(found) == len(numbers),
                f"`{how}` of `{path}` changed another number too.",
            )
            same = jtu.tree_structure(changed) == jtu.tree_structure(transform)
            expect(same, f"`{how}` of `{path}` changed the structure of the transform.")
        expect(transform.hyperparameters()[path] is x, f"`{path}` was changed in place.")


@needs(has_numbers)
def law_a_number_in_force_is_listed(case: Case) -> None:
    """`hyperparameters(state)` lists the current values, with every schedule evaluated for the next step."""
    state = case.init()
    now = case.transform.hyperparameters(state)
    for path, x in now.items():
        expect(np.ndim(x) == 0, f"the current value of `{path}` is {x!r}, which is not a single number.")
        expect(np.isfinite(np.asarray(x, float)), f"the current value of `{path}` is {x}.")


def law_unknown_names_are_refused(case: Case) -> None:
    """`replace` with a misspelt name raises a ValueError that names the class and the existing names."""
    try:
        case.transform.replace(no_such_number=1.0)
    except ValueError as error:
        for part in (type(case.transform).__name__, "no_such_number", *list(case.numbers())[:3]):
            expect(part in str(error), f"the error does not mention `{part}`: {error}")
    else:
        raise AssertionError("`replace(no_such_number=1.0)` was accepted.")


def law_the_repr_can_be_read(case: Case) -> None:
    """`f"{transform:all}"` shows the class and all hyperparameters as written; a batch shows dtype and shape."""
    text = f"{case.transform:all}"
    name = type(case.transform).__name__
    expect(text.startswith(name + "("), f"{text!r} does not begin with `{name}(`.")
    unreadable = re.search(r"Array\(|array\(|f32\[|ShapeDtypeStruct|<class|object at 0x|function <", text)
    expect(unreadable is None, f"{text!r} contains {unreadable and unreadable.group()!r}.")
    for path, x in case.numbers().items():
        field = path.rpartition(".")[2]
        if field.isidentifier():
            shown = re.findall(rf"\b{field}=([-+.e\d]+)", text)
            right = [s for s in shown if np.float32(s) == np.float32(x) and len(s) <= 12]
            expect(right, f"{text!r} does not show that `{field}` is {x}.")
    batch = f"{map_numbers(lambda x: jnp.zeros(3), case.transform):all}"
    shows_shapes = not case.numbers() or "float32[3]" in batch
    expect(shows_shapes, f"{batch!r}, a batch of three, does not show `float32[3]`.")

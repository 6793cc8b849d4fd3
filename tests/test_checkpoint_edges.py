"""Checkpoints where something is ambiguous, and at every instant of an overwriting save."""

import itertools
import os
import re
import shutil
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import modulax as mx
from modulax import checkpoint

OLD, NEW = {"w": jnp.zeros(3)}, {"w": jnp.ones(3)}

# --- Names that could be meant -----------------------------------------------------------------------

X, Y = np.full(2, 1.0, np.float32), np.full(2, 2.0, np.float32)
LONG, BLANK = np.full(3, 3.0, np.float32), np.zeros(2, np.float32)


class Mean(mx.AbstractState):
    """The state of a rule."""

    mu: Any


class Other(mx.AbstractState):
    """The state of another rule, with an array of the same name."""

    mu: Any
    nu: Any


class Nest(mx.AbstractState):
    """The state of a container of one part."""

    inner_state: Any = mx.nested()


class Parts(mx.AbstractState):
    """The state of a container of several."""

    inner_states: dict[str, Any] = mx.nested()


# What is saved, what is wanted, and which name is found for which.
LENIENT: dict[str, tuple[Any, Any, dict[str, str]]] = {
    "the same": (Mean(X), Mean(BLANK), {"mu": "mu"}),
    "put into a container": (Mean(X), Nest(Mean(BLANK)), {"inner_state.mu": "mu"}),
    "taken out of one": (Nest(Mean(X)), Mean(BLANK), {"mu": "inner_state.mu"}),
    "two for one": (Parts({"a": Mean(X), "b": Mean(Y)}), Mean(BLANK), {}),
    "one for two": (Mean(X), Parts({"a": Mean(BLANK), "b": Mean(BLANK)}), {}),
    "two under other keys": (
        Parts({"a": Mean(X), "b": Mean(Y)}),
        Parts({"c": Nest(Mean(BLANK)), "d": Nest(Mean(BLANK))}),
        {},
    ),
    "another rule under another key": (Parts({"a": Mean(X)}), Parts({"b": Mean(BLANK)}), {}),
    "two under the same keys": (
        Parts({"a": Mean(X), "b": Mean(Y)}),
        Nest(Parts({"b": Mean(BLANK), "a": Mean(BLANK)})),
        {f"inner_state.inner_states.{key}.mu": f"inner_states.{key}.mu" for key in "ab"},
    ),
    "one of two under its key": (
        Parts({"a": Mean(X), "b": Mean(Y)}),
        Nest(Parts({"b": Mean(BLANK)})),
        {"inner_state.inner_states.b.mu": "inner_states.b.mu"},
    ),
    "another shape": (Mean(LONG), Nest(Mean(BLANK)), {}),
    "one under a name that is of no container": (Nest({"head": Mean(X)}), Nest(Mean(BLANK)), {}),
    "the one of two that has the shape": (
        Parts({"a": Mean(LONG), "b": Mean(Y)}),
        Mean(BLANK),
        {"mu": "inner_states.b.mu"},
    ),
    "another parameter": (Mean({"encoder": X}), Nest(Mean({"decoder": BLANK})), {}),
    "one that is near, and one in a container under another key": (
        Parts({"a": Mean(X)}),
        Nest(Parts({"a": Mean(BLANK), "b": Nest(Mean(BLANK))})),
        {"inner_state.inner_states.a.mu": "inner_states.a.mu"},
    ),
    # In doubt between two of the nearest, what is farther away is not taken instead.
    "two of the same rule, and one of another": (
        Parts({"a": Other(X, LONG), "b": Other(Y, LONG), "c": Mean(X)}),
        Other(BLANK, np.zeros_like(LONG)),
        {},
    ),
    "two that are near, and one that is far": (
        Parts({"a": Nest(Mean(X)), "b": Nest(Parts({"a": Mean(Y)})), "c": Mean(LONG)}),
        Parts({"a": Nest(Nest(Mean(BLANK))), "c": Mean(np.zeros_like(LONG))}),
        {
            "inner_states.a.inner_state.inner_state.mu": "inner_states.a.inner_state.mu",
            "inner_states.c.mu": "inner_states.c.mu",
        },
    ),
}


@pytest.mark.parametrize("name", LENIENT)
def test_a_lenient_restore_takes_nothing_that_could_be_something_else(name: str):
    saved, template, found = LENIENT[name]
    flat = checkpoint.state_dict(saved)
    restored, report = checkpoint.load_state_dict(template, flat, strict=False)
    assert dict(report.restored) == found
    assert set(report.unused) == flat.keys() - set(found.values())
    for path, value in checkpoint.state_dict(restored).items():
        before = checkpoint.state_dict(template)[path]
        np.testing.assert_array_equal(value, flat[found[path]] if path in found else before)


def test_another_shape_under_the_same_name_is_an_error():
    """A lenient restore leaves out what it does not find, and not what it finds and cannot use."""
    for nest in (lambda x: x, Nest, lambda x: {"state": Parts({"a": x})}):
        flat = checkpoint.state_dict(nest(Other(LONG, X)))
        for template in (nest(Other(BLANK, BLANK)), nest(Mean(BLANK))):
            with pytest.raises(ValueError, match="has shape"):
                checkpoint.load_state_dict(template, flat, strict=False)


# --- Instants of a save ------------------------------------------------------------------------------


class KilledError(Exception):
    """The process ended here."""


def restored(path: Path) -> jax.Array:
    return checkpoint.restore(path, OLD)[0]["w"]


@pytest.mark.parametrize(
    "owner, name, call, kept",
    [(Path, "rename", 0, OLD), (Path, "rename", 1, OLD), (shutil, "rmtree", 0, NEW)],
    ids=["before the first rename", "between the renames", "before the old one is deleted"],
)
def test_at_every_instant_of_a_save_there_is_a_whole_checkpoint(
    owner: Any, name: str, call: int, kept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The old one, until the new one is in place. The process ends where a function is called for the nth time."""
    path, calls, original = tmp_path / "a", [], getattr(owner, name)

    def ends(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > call:
            raise KilledError
        return original(*args, **kwargs)

    checkpoint.save(path, OLD)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, ends)
        with pytest.raises(KilledError):
            checkpoint.save(path, NEW, overwrite=True)
    np.testing.assert_array_equal(restored(path), kept["w"])
    checkpoint.save(path, NEW, overwrite=True)
    np.testing.assert_array_equal(restored(path), NEW["w"])


# --- What comes back ---------------------------------------------------------------------------------


def test_a_number_that_cannot_be_written_comes_back_so():
    template = np.zeros(2, np.float32)
    for is_writable in (True, False):
        template.setflags(write=is_writable)
        found, _ = checkpoint.load_state_dict({"w": template}, {"w": X})
        assert found["w"].flags.writeable == is_writable


def test_every_leaf_comes_back_as_what_the_template_has_there():
    """Numbers of Python from another precision, scalars of NumPy, and keys of any kind, also where described alone."""
    key = jax.random.key(3, impl="rbg")
    saved = {"n": np.int32(3), "x": np.float32(0.5), "flag": True, "z": 1j, "s": np.float32(2.0), "key": key}
    blank = {"n": 0, "x": 0.0, "flag": False, "z": 0j, "s": np.float32(0.0), "key": jax.random.key(0, impl="rbg")}
    flat = checkpoint.state_dict(saved)
    for template in (blank, {**blank, "key": jax.eval_shape(lambda: key)}):
        found, _ = checkpoint.load_state_dict(template, flat)
        assert found == saved
        assert {name: type(x) for name, x in found.items()} == {
            **{n: type(x) for n, x in blank.items()},
            "key": type(key),
        }
        assert jax.random.key_impl(found["key"]) == jax.random.key_impl(key)
    value = np.ones(2, np.float32)
    found, _ = checkpoint.load_state_dict({"w": BLANK}, {"w": value})
    assert not np.shares_memory(found["w"], value)


def test_a_python_number_comes_back_as_the_scalar_that_the_template_has(tmp_path: Path):
    """A float or an integer in the place of a scalar of any float dtype, an integer in that of one, on the disk too."""
    saved = {"array": 0.5, "low": 0.5, "scalar": 2, "count": 7, "shape": 0.5, "float": 3, "wide": jnp.bfloat16(0.5)}
    blank = {"array": jnp.zeros(()), "low": jnp.bfloat16(0), "scalar": np.float32(0), "count": np.int32(0)}
    template = {**blank, "shape": jax.ShapeDtypeStruct((), jnp.float32), "float": 0.0, "wide": 0.0}
    checkpoint.save(tmp_path / "numbers", saved)
    for found, _ in (checkpoint.load_state_dict(template, saved), checkpoint.restore(tmp_path / "numbers", template)):
        assert found == saved
        kinds = {name: x for name, x in found.items() if name != "shape"}
        assert [*map(type, kinds.values())] == [type(template[name]) for name in kinds]
        assert {name: found[name].dtype for name in blank} == {name: x.dtype for name, x in blank.items()}
    for number, leaf in ((2**40, np.int32(0)), (1e39, jnp.zeros(()))):
        with pytest.raises(ValueError, match=r"the number .*, which (int|float)32 of the template doesn't hold"):
            checkpoint.load_state_dict({"n": leaf}, {"n": number})


def test_two_leaves_of_one_name_are_refused():
    tree = {"layers": OrderedDict([(1, X), ("1", Y)])}
    for call in (lambda: checkpoint.state_dict(tree), lambda: checkpoint.save("/nowhere", tree)):
        with pytest.raises(ValueError, match=r"have the same name, `layers\.1`"):
            call()


def test_a_report_says_what_was_moved_from_where_to_where():
    flat = {"a.w": X, "b.a.v": Y, "c": Y}
    template = {"d": {"w": BLANK}, "b": {"v": BLANK}, "e": BLANK}

    def rename(name: str) -> str | None:
        return {"a.w": "d.w", "b.a.v": "b.v"}.get(name)

    rules = {"a.w": "d.w", "a": ""}
    all_rules = {"c": "e", **rules}
    says = f"Shapes agree with `rename={all_rules}`."
    for rules_or_function, unused, proposed in ((rename, [], []), (rules, ["  unused  c"], [says])):
        found, report = checkpoint.load_state_dict(template, flat, rename=rules_or_function, strict=False)
        np.testing.assert_array_equal(found["d"]["w"], X)
        np.testing.assert_array_equal(found["b"]["v"], Y)
        moved = ["  moved   b.a.v -> b.v", "  moved   a.w -> d.w"]
        first = f"restored 2, fresh 1, unused {len(unused)}"
        assert str(report).splitlines() == [first, *moved, "  fresh   e", *unused, *proposed]
    found, report = checkpoint.load_state_dict(template, flat, rename=report.proposed)
    np.testing.assert_array_equal(found["e"], Y)
    with pytest.raises(ValueError, match=r"lacks `weight` \(it has `weights`\)"):
        checkpoint.load_state_dict({"weight": BLANK}, {"weights": X, "c": X})
    with pytest.raises(ValueError, match=r"`c` has shape .*`w` of the template.*\{'c': 'left_out.c'\}"):
        checkpoint.load_state_dict({"w": BLANK}, {"c": LONG}, rename={"c": "w"})


def test_a_path_may_be_relative_in_new_folders_and_that_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    checkpoint.save("runs/first", OLD)
    np.testing.assert_array_equal(restored(Path("runs/first")), OLD["w"])
    Path("file").write_text("not a checkpoint")
    Path("folder/docs").mkdir(parents=True)
    for other in ("file", "folder"):
        with pytest.raises(FileExistsError, match=f"{other}` is not a checkpoint, .* doesn't delete it"):
            checkpoint.save(other, NEW, overwrite=True)
    assert Path("folder/docs").is_dir()
    Path("empty").mkdir()
    Path("latest").symlink_to("runs/first")
    for path in ("empty", "latest"):
        checkpoint.save(path, NEW, overwrite=True)
        np.testing.assert_array_equal(restored(Path(path)), NEW["w"])
    np.testing.assert_array_equal(restored(Path("runs/first")), NEW["w"])  # to which the link leads
    assert not list(Path().glob("*.old"))
    # A backup of the user is not what a killed `save` left.
    Path("empty").rename("empty.2024.old")
    with pytest.raises(FileNotFoundError):
        checkpoint.restore("empty", NEW)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    for call in (lambda: checkpoint.save("other", NEW), lambda: checkpoint.restore("latest", NEW)):
        with pytest.raises(ImportError, match=r"need orbax: `pip install modulax\[orbax\]`"):
            call()


def test_a_restore_changes_no_dtype():
    for dtype in (jnp.bfloat16, jnp.float16, np.float64, np.int32):
        with pytest.raises(ValueError, match="does not cast"):
            checkpoint.load_state_dict({"w": X}, {"w": np.zeros(2, dtype)})
    # As many bytes, and another meaning:
    with pytest.raises(ValueError, match="`w` is bfloat16 in the checkpoint, but `w` of the template is float16"):
        checkpoint.load_state_dict({"w": X.astype(np.float16)}, {"w": np.zeros(2, jnp.bfloat16)})


@pytest.mark.parametrize("is_plateau_first", [False, True])
def test_steps_of_optax_are_those_of_the_first_part_that_counts_steps(is_plateau_first: bool):
    """`reduce_on_plateau` counts the losses of which it takes the mean."""
    adam: Any = optax.scale_by_adam().init(OLD)
    plateau: Any = optax.contrib.reduce_on_plateau().init(OLD)
    theirs = (adam._replace(count=np.int32(4)), plateau._replace(count=np.int32(1)))
    optimizer = mx.Chain(adam=mx.Adam(0.1), plateau=mx.ReduceOnPlateau())
    if is_plateau_first:
        optimizer, theirs = mx.Chain(plateau=mx.ReduceOnPlateau(), adam=mx.Adam(0.1)), theirs[::-1]
    ours, _ = checkpoint.state_from_optax(optimizer.init(OLD), theirs, optimizer, OLD)
    assert ours["adam"].step == ours["adam"].inner["scale_by_adam"].count == 4
    assert ours["plateau"].count == 1


def test_every_state_of_optax_is_known():
    """`apply_every` does not count steps, and `add_decayed_weights` counts them for its schedule."""
    theirs: Any = (optax.apply_every(2).init(OLD), optax.scale_by_adam().init(OLD))
    adam, sgd = mx.Adam(0.1), mx.SGD(0.1, momentum=0.9)
    _, report = checkpoint.state_from_optax(adam.init(OLD), theirs, adam, OLD, strict=False)
    assert {name.split(".")[1] for name in report.unused} == {"count", "grad_acc"}
    assert report.restored["step"] == "1.count"
    decay: Any = optax.add_decayed_weights(lambda step: 0.1).init(OLD)
    theirs = (optax.trace(0.9).init(OLD), decay._replace(count=np.int32(7)))
    ours, _ = checkpoint.state_from_optax(sgd.init(OLD), theirs, sgd, OLD)
    assert ours.step == 7


def test_an_array_goes_where_the_template_lives():
    """Whether the template is an array or a description of one, and whether or not the value is on a device already."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    described = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=place)
    for template, value in ((jax.device_put(BLANK, place), X), (described, X), (described, jnp.asarray(X))):
        found, _ = checkpoint.load_state_dict({"w": template}, {"w": value})
        assert found["w"].sharding == place
    found, _ = checkpoint.load_state_dict({"w": jnp.zeros(2)}, {"w": X})
    assert not found["w"].committed  # so that it can be combined with arrays on other devices
    key = jax.device_put(jax.random.key(0), place)
    found, _ = checkpoint.load_state_dict({"key": key}, checkpoint.state_dict({"key": jax.random.key(1)}))
    assert found["key"].sharding == place
    assert found["key"] == jax.random.key(1)


def test_what_comes_back_shares_no_memory(tmp_path: Path):
    """Neither with what it was read from nor within itself, as donation requires."""
    params = {"w": jnp.ones(16), "b": jnp.zeros(3)}
    adam = mx.AdamW(0.1)
    _, state = adam.step(params, adam.init(params), params)
    source = jax.tree.map(np.asarray, (params, state))
    aligned = np.frombuffer(bytearray(16 * 4 + 64), np.uint8)
    aligned = aligned[-aligned.ctypes.data % 64 :][: 16 * 4].view(np.float32)  # where JAX could use the memory itself
    groups = mx.groups(adam, {"b": {"weight_decay": 0.0}})
    blank = (params, groups.init(params))
    checkpoint.save(tmp_path / "x", (params, state))
    flat = checkpoint.state_dict((params, state))
    tx = optax.adamw(0.1)
    theirs = checkpoint.state_to_optax(tx.init(params), state, adam, params)[0]
    found = [
        checkpoint.state_from_optax(adam.init(params), theirs, adam, params)[0],
        theirs,
        checkpoint.load_state_dict(state, checkpoint.state_dict(state))[0],
        checkpoint.load_state_dict({"w": params["w"]}, {"w": aligned})[0],
    ]
    for template in (blank, jax.device_put(blank, jax.devices()[0]), jax.eval_shape(lambda: blank)):
        found += [checkpoint.load_state_dict(template, flat, strict=False)[0]]
        found += [checkpoint.restore(tmp_path / "x", template, strict=False)[0]]
    memory = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, state, found))]
    assert len({*memory, aligned.ctypes.data}) == len(memory) + 1
    assert jax.tree.all(jax.tree.map(np.array_equal, found[2], source[1]))


def test_what_comes_back_is_in_the_memory_of_the_template():
    params = {"w": jnp.ones(3)}
    adam, offload = mx.AdamW(0.1), mx.Offload(mx.AdamW(0.1))
    templates = {"device": adam.init(params), "pinned_host": offload.init(params)}
    for saved, template in itertools.product(templates.values(), templates.values()):
        found, _ = checkpoint.load_state_dict(template, checkpoint.state_dict(saved), strict=False)
        kinds = [[x.sharding.memory_kind for x in jax.tree.leaves(tree)] for tree in (found, template)]
        assert kinds[0] == kinds[1]
    found, _ = checkpoint.load_state_dict(adam.init(params), checkpoint.state_dict(offload.init(params)), strict=False)
    adam.step(params, found, params)


def test_arrays_without_elements_and_arrays_of_strings_are_kept_from_the_template(tmp_path: Path):
    """orbax stores neither. A template of shapes gives an empty array."""
    tree = {"none": jnp.zeros((0, 3)), "numpy": np.zeros(0), "names": np.array(["x", "y"]), "w": jnp.ones(2)}
    checkpoint.save(tmp_path / "saved", tree)
    restored, report = checkpoint.restore(tmp_path / "saved", tree | {"w": jnp.zeros(2)})
    assert list(report.restored) == ["w"]
    assert restored["none"].shape == (0, 3)
    assert restored["names"] is tree["names"]
    np.testing.assert_array_equal(restored["w"], 1)
    shapes = jax.eval_shape(lambda: {"none": jnp.zeros((0, 3)), "w": jnp.zeros(2)})
    restored, _ = checkpoint.restore(tmp_path / "saved", shapes)
    assert isinstance(restored["none"], jax.Array)
    assert restored["none"].shape == (0, 3)
    with pytest.raises(ValueError, match="the checkpoint lacks `none`"):
        checkpoint.restore(tmp_path / "saved", tree | {"none": jnp.zeros((2, 3))})


def test_what_killed_saves_left_is_removed(tmp_path: Path):
    """Beside the same path, and not what another process is writing; the old checkpoint, once there is a new one."""
    old = tmp_path / "a"
    name = f"a.{'0' * 32}"
    kept = {"a.old", "a.backup", f"b.{'0' * 32}.old", f"a.{'1' * 32}.orbax-checkpoint-tmp", f"b{name}", "aa"}
    for x in (f"{name}.old", f"{name}.orbax-checkpoint-tmp", name, *kept):
        checkpoint.save(tmp_path / x, {"w": jnp.zeros(2)})
        for path in (tmp_path / x, *(tmp_path / x).rglob("*")) if "1" not in x else ():
            os.utime(path, (0, 0))
    checkpoint.save(old, {"w": jnp.ones(2)})
    assert {x.name for x in tmp_path.iterdir()} == {"a", f"{name}.old", *kept}
    checkpoint.save(old, {"w": jnp.ones(2)}, overwrite=True)
    assert {x.name for x in tmp_path.iterdir()} == {"a", *kept}


def test_a_full_disk_is_an_os_error_and_leaves_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def save(self: Any, path: Path, *args: Any) -> None:
        path.with_name(f"{path.name}.orbax-checkpoint-tmp").mkdir()
        raise ValueError(message)

    checkpoint.save(tmp_path / "a", {"w": jnp.ones(2)})
    monkeypatch.setattr(ocp.StandardCheckpointer, "save", save)
    message = (
        "RESOURCE_EXHAUSTED: Error writing \"w/0\" in OCDBT database: No space left on device [os_error_code='28']"
    )
    for name in ("a", "b"):
        with pytest.raises(OSError, match=r"could not be written to .*No space left .*Nothing was changed"):
            checkpoint.save(tmp_path / name, {"w": jnp.zeros(2)}, overwrite=True)
        assert [x.name for x in tmp_path.iterdir()] == ["a"]
    assert float(checkpoint.restore(tmp_path / "a", {"w": jnp.zeros(2)})[0]["w"][0]) == 1
    message = "Unsupported type"
    with pytest.raises(ValueError, match="Unsupported type"):
        checkpoint.save(tmp_path / "b", {"w": jnp.zeros(2)})


def test_a_list_that_grew_or_shrank_is_remarked_on():
    """Its entries are matched by index; by the printed `rename` from its end on."""

    def tree(values: list[float]) -> Any:
        params = {"layers": [{"w": jnp.full(2, x)} for x in values], "n": jnp.ones(1)}
        return {"params": params, "state": jax.tree.map(lambda x: x + 1, mx.SGD(0.1, momentum=0.9).init(params))}

    for now, before in (([-1.0, -1.0, -1.0, -1.0], [0.0, 1.0, 2.0]), ([-1.0], [0.0, 1.0])):
        saved = checkpoint.state_dict(tree(before))
        _, report = checkpoint.load_state_dict(tree(now), saved, strict=False)
        (remark,) = report.remarks
        assert remark.startswith(f"`params.layers` has {len(now)} entries, and {len(before)} in the checkpoint.")
        rename = eval(remark.split("`rename=")[1].split("`")[0], {"re": re})
        found, report = checkpoint.load_state_dict(tree(now), saved, rename=rename, strict=False)
        values = [float(layer["w"][0]) for layer in found["params"]["layers"]]
        assert values == [*now, *before][-len(now) :]
        assert mx.tree.get(found["state"], "trace")["layers"][-1]["w"][0] == 1
    # Groups with numbers as keys are no list.
    two, one = (mx.Partition({i: mx.SGD(0.1) for i in range(n)}, {"w": 0, "v": n - 1}) for n in (2, 1))
    params = {"w": jnp.ones(2), "v": jnp.ones(3)}
    _, report = checkpoint.load_state_dict(one.init(params), checkpoint.state_dict(two.init(params)), strict=False)
    assert not report.remarks

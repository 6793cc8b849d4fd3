"""Checkpoints by name: what is restored, what is refused, and what survives a changed program."""

import itertools
import re
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import modulax as mx
from modulax import checkpoint
from modulax.tree._paths import join, split

from .settings import jax_defaults

PARAMS = {"encoder": {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.zeros(3)}, "head": [jnp.ones((3, 1))]}
GRADS = jtu.tree_map(lambda p: p + 1, PARAMS)


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


def trained(optimizer: Any, steps: int = 2, params: Any = PARAMS) -> tuple[Any, Any]:
    state = optimizer.init(params)
    for _ in range(steps):
        params, state = optimizer.step(jtu.tree_map(lambda p: p + 1, params), state, params)
    return params, state


def assert_equal(a: Any, b: Any) -> None:
    chex.assert_trees_all_equal(a, b, strict=True)
    are_jax = [[isinstance(x, jax.Array) for x in jtu.tree_leaves(tree)] for tree in (a, b)]
    assert are_jax[0] == are_jax[1]


def as_numpy(tree: Any) -> Any:
    return jtu.tree_map(np.asarray, tree)


class Net(eqx.Module):
    layers: list
    activation: Any
    name: str

    def __init__(self, key: Any):
        self.layers = [eqx.nn.Linear(3, 4, key=key), eqx.nn.Dropout(0.25), eqx.nn.Linear(4, 2, key=key)]
        self.activation, self.name = jnp.tanh, "net"


def test_a_whole_training_goes_there_and_back(tmp_path: Path):
    model = Net(jax.random.key(0))
    optimizer = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(mx.schedules.CosineDecay(1e-2, 100)))
    tree = {
        "model": model,
        "optimizer": optimizer,
        "state": optimizer.init(model),
        "key": jax.random.key(7),
        "step": 12,
        "low": jnp.ones(3, jnp.bfloat16),
        "scalar": np.float32(0.5),
    }
    checkpoint.save(tmp_path / "a", tree)
    template = {**tree, "model": Net(jax.random.key(1)), "step": 0, "key": jax.random.key(8)}
    template["low"] = jnp.zeros(3, jnp.bfloat16)
    restored, report = checkpoint.restore(tmp_path / "a", template)
    np.testing.assert_array_equal(jax.random.key_data(restored.pop("key")), jax.random.key_data(tree.pop("key")))
    assert_equal(eqx.filter(restored, eqx.is_array_like), eqx.filter(tree, eqx.is_array_like))
    assert restored["model"].activation is jnp.tanh
    assert restored["model"].name == "net"
    assert restored["step"] == 12
    assert type(restored["step"]) is int
    assert not report.fresh
    assert not report.unused
    # A number of an optimizer stays the read-only NumPy scalar that is sent to the device once.
    assert not restored["optimizer"]["adamw"].b1.flags.writeable


def test_an_nnx_model_and_its_optimizer(tmp_path: Path):
    from flax import nnx

    import modulax.nnx

    def make(seed: int) -> Any:
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
        return {"model": nnx.state(model), "optimizer": nnx.state(modulax.nnx.Optimizer(model, mx.AdamW(1e-2)))}

    tree = make(0)
    checkpoint.save(tmp_path / "a", tree)
    restored, report = checkpoint.restore(tmp_path / "a", make(1))
    assert_equal(nnx.as_pure(restored), nnx.as_pure(tree))
    assert "model.kernel" in report.restored
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "b", tree)  # orbax calls it `model.kernel.value`
        checkpointer.wait_until_finished()
    restored, _ = checkpoint.restore(tmp_path / "b", make(1))
    assert_equal(nnx.as_pure(restored), nnx.as_pure(tree))


def test_a_state_of_nnx_is_restored_into_another_optimizer_however_orbax_wrote_it(tmp_path: Path):
    """Without the boxes of variables too. The root of the model has a dot in a name."""
    from flax import nnx

    import modulax.nnx

    model = nnx.Dict({"a.b": nnx.Param(jnp.ones(2)), "c": nnx.Param(jnp.ones(3))})
    optimizer, chain = mx.ScaleByAdam(), mx.Chain(mx.ClipByGlobalNorm(1.0), mx.ScaleByAdam())
    state = nnx.state(modulax.nnx.Optimizer(model, optimizer))
    template = nnx.state(modulax.nnx.Optimizer(model, chain))["opt_state"]
    for i, form in enumerate((state, nnx.as_pure(state), nnx.to_pure_dict(state))):
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / str(i), {"opt_state": form["opt_state"]})
        _, report = checkpoint.restore(tmp_path / str(i), {"opt_state": template}, strict=False)
        assert (len(report.restored), report.fresh, report.unused) == (5, (), ())


def test_names_may_hold_dots_and_slashes(tmp_path: Path):
    tree = {
        "a.b": jnp.ones(1),
        "a": {"b": jnp.zeros(1)},
        "c/d": jnp.full(1, 2.0),
        "c": {"d": jnp.full(1, 3.0)},
        "e\\.f": jnp.full(1, 4.0),
        "g.": jnp.full(1, 5.0),
        ".": {"..": jnp.full(1, 6.0)},
        "\\.": jnp.full(1, 7.0),
    }
    names = {r"a\.b", "a.b", "c/d", "c.d", r"e\\\.f", r"g\.", r"\..\.\.", r"\\\."}
    assert set(checkpoint.state_dict(tree)) == names
    checkpoint.save(tmp_path / "a", tree)
    restored, _ = checkpoint.restore(tmp_path / "a", jtu.tree_map(jnp.zeros_like, tree))
    assert_equal(restored, tree)


def test_a_name_is_taken_apart_into_the_keys_that_it_joins():
    keys = ["".join(letters) for n in range(4) for letters in itertools.product("a.\\", repeat=n)] + ["\n"]
    for names in [(k,) for k in keys] + list(itertools.product(keys[:13], repeat=2)) + [("a", "", "b."), ("", ".", "")]:
        assert split(join(names)) == names


def test_state_dict_is_for_npz(tmp_path: Path):
    optimizer = mx.AdamW(1e-3)
    params, state = trained(optimizer)
    np.savez(tmp_path / "a.npz", **checkpoint.state_dict((params, state)))
    with np.load(tmp_path / "a.npz") as stored:
        assert "1.inner.parts.scale_by_adam.mu.encoder.w" in stored
        restored, report = checkpoint.load_state_dict((PARAMS, optimizer.init(PARAMS)), dict(stored))
    assert_equal(restored, (params, state))
    assert str(report) == "restored 11, fresh 0, unused 0"


def test_npz_forgets_the_name_of_bfloat16_and_the_template_knows_it(tmp_path: Path):
    tree = {"w": jnp.arange(3, dtype=jnp.bfloat16)}
    np.savez(tmp_path / "a.npz", **checkpoint.state_dict(tree))
    with np.load(tmp_path / "a.npz") as stored:
        restored, _ = checkpoint.load_state_dict({"w": jnp.zeros(3, jnp.bfloat16)}, dict(stored))
        assert_equal(restored, tree)
        with pytest.raises(ValueError, match="`w` of the template is float32"):
            checkpoint.load_state_dict({"w": jnp.zeros(3)}, dict(stored))


def test_a_renamed_module_is_renamed_in_all_moments(tmp_path: Path):
    optimizer = mx.AdamW(1e-3)
    params, state = trained(optimizer)
    checkpoint.save(tmp_path / "a", {"params": params, "state": state})
    new = {"backbone": PARAMS["encoder"], "head": PARAMS["head"]}
    template = {"params": new, "state": optimizer.init(new)}
    with pytest.raises(ValueError, match=r"the checkpoint lacks `params.backbone.b`.*\(it has `params.encoder.b`\)"):
        checkpoint.restore(tmp_path / "a", template)
    restored, report = checkpoint.restore(tmp_path / "a", template, rename={"encoder": "backbone"})
    np.testing.assert_array_equal(restored["params"]["backbone"]["w"], params["encoder"]["w"])
    adam = restored["state"].inner["scale_by_adam"]
    np.testing.assert_array_equal(adam.nu["backbone"]["w"], state.inner["scale_by_adam"].nu["encoder"]["w"])
    assert "moved   params.encoder.b -> params.backbone.b" in str(report)
    by_function, _ = checkpoint.restore(
        tmp_path / "a", template, rename=lambda name: name.replace("encoder", "backbone")
    )
    assert_equal(by_function, restored)


CHANGES = {
    "into a chain": (mx.AdamW(1e-3), mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-3))),
    "out of a chain": (mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-3)), mx.AdamW(1e-3)),
    "a schedule": (mx.AdamW(1e-3), mx.AdamW(mx.schedules.Linear(1e-3, 0.0, 10))),
    "into MultiSteps": (mx.AdamW(1e-3), mx.MultiSteps(mx.AdamW(1e-3), 2)),
    "out of MultiSteps": (mx.MultiSteps(mx.AdamW(1e-3), 2), mx.AdamW(1e-3)),
    "an average before": (mx.Chain(mx.ScaleByAdam()), mx.Chain(mx.Ema(0.9), mx.ScaleByAdam())),
    "no average before": (mx.Chain(mx.Ema(0.9), mx.ScaleByAdam()), mx.Chain(mx.ScaleByAdam())),
    "into Injected": (mx.SGD(0.1, momentum=0.9), mx.Injected(mx.SGD(0.1, momentum=0.9))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_survives_a_changed_optimizer_is_restored(change: str, tmp_path: Path):
    before, after = CHANGES[change]
    _, state = trained(before)
    checkpoint.save(tmp_path / "a", state)
    fresh = after.init(PARAMS)
    restored, report = checkpoint.restore(tmp_path / "a", fresh, strict=False)
    assert jtu.tree_structure(restored) == jtu.tree_structure(fresh)
    old, new = checkpoint.state_dict(state), checkpoint.state_dict(restored)
    moments = [name for name in report.restored if {"mu", "nu", "trace"} & set(name.split("."))]
    assert len(moments) == sum(bool({"mu", "nu", "trace"} & set(name.split("."))) for name in old)
    for name, source in report.restored.items():
        np.testing.assert_array_equal(new[name], old[source])
    for name in report.fresh:
        np.testing.assert_array_equal(new[name], checkpoint.state_dict(fresh)[name])
    assert set(report.restored) | set(report.fresh) == set(new)
    assert set(report.restored.values()) | set(report.unused) == set(old)


def test_only_states_of_transforms_are_found_again_under_another_name():
    old = {"params": {"encoder": {"w": jnp.ones(2)}}, "state": mx.AdamW(1e-3).init({"w": jnp.ones(2)})}
    new = {"params": {"w": jnp.zeros(2)}, "state": mx.Chain(mx.Clip(1.0), mx.AdamW(1e-3)).init({"w": jnp.ones(2)})}
    _, report = checkpoint.load_state_dict(new, checkpoint.state_dict(old), strict=False)
    assert report.fresh == ("params.w",)
    assert report.unused == ("params.encoder.w",)
    assert report.restored["state.parts.adamw.step"] == "state.step"


def test_a_parameter_that_comes_and_one_that_goes(tmp_path: Path):
    optimizer = mx.AdamW(1e-3)
    params, state = trained(optimizer)
    checkpoint.save(tmp_path / "a", {"params": params, "state": state})
    new = {"encoder": PARAMS["encoder"], "neck": jnp.full(2, 5.0)}
    restored, report = checkpoint.restore(tmp_path / "a", {"params": new, "state": optimizer.init(new)}, strict=False)
    np.testing.assert_array_equal(restored["params"]["encoder"]["w"], params["encoder"]["w"])
    np.testing.assert_array_equal(restored["params"]["neck"], new["neck"])
    assert report.fresh[0] == "params.neck"
    assert report.unused[0] == "params.head.0"
    assert all("scale_by_adam" in name for name in report.fresh[1:] + report.unused[1:])  # one count for all moments
    assert int(restored["state"].step) == 2
    groups = mx.groups(optimizer, {"neck": {"learning_rate": 1e-2}})
    restored, report = checkpoint.restore(tmp_path / "a", {"params": new, "state": groups.init(new)}, strict=False)
    assert all("neck" in name for name in report.fresh)
    assert report.unused[0] == "params.head.0"
    assert len(report.unused) == 3


def test_one_rename_leaves_out_all_that_has_another_shape():
    """The last layer of a new task, with its moments: from this library and from optax, also in fewer bits."""

    def params(n: int, encoder: str = "enc") -> Any:
        return {encoder: {"w": jnp.ones((4, 2)), "b": jnp.ones(2)}, "head": {"w": jnp.ones((4, n)), "b": jnp.ones(n)}}

    def tree(optimizer: Any, n: int, encoder: str = "enc") -> Any:
        return {"params": params(n, encoder), "opt_state": optimizer.init(params(n, encoder))}

    def restored(template: Any, saved: Any, **options: Any) -> Any:
        if isinstance(saved["opt_state"], tuple):
            return checkpoint.state_from_optax(template, saved, adam, **options)
        return checkpoint.load_state_dict(template, checkpoint.state_dict(saved), **options)

    adam, low_bit = mx.AdamW(0.1), mx.LowBit(mx.AdamW(0.1), min_size=8)
    given: Any = (None, {"old": "enc"}, lambda name: name.replace("old", "enc"))
    pairs = (adam, adam), (low_bit, low_bit), (optax.adamw(0.1), adam)
    for (before, after), rules in itertools.product(pairs, given):
        template, saved = tree(after, 3), tree(before, 5, "old" if rules else "enc")
        with pytest.raises(ValueError, match=r"has shape .* arrays differ in shape") as error:
            restored(template, saved, rename=rules, strict=False)
        rename = eval(str(error.value).split("`rename=")[1].split("`")[0], {"rename": rules})
        _, report = restored(template, saved, rename=rename, strict=False)
        # The moments of the other layers too, because all share a count.
        assert {name for name in report.fresh if "rng_key" not in name} == {
            name for name in checkpoint.state_dict(template) if "head" in name or "scale_by_adam" in name
        } - {"opt_state.inner_state.rng_key"}
    # A name that ends another one.
    with pytest.raises(ValueError, match=r"if name in \['w'\] else name"):
        checkpoint.load_state_dict({"w": jnp.ones(2), "a": {"w": jnp.ones(2)}}, {"w": jnp.ones(3), "a.w": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"Pass a template with the shapes that were saved\.$"):
        checkpoint.state_to_optax(optax.adamw(0.1).init(params(3)), adam.init(params(5)), adam, params(5))


def test_a_checkpoint_of_another_optimizer_is_refused_and_told(tmp_path: Path):
    checkpoint.save(tmp_path / "a", mx.SGD(0.1, momentum=0.9).init(PARAMS))
    template = mx.AdamW(1e-3).init(PARAMS)
    with pytest.raises(ValueError, match=r"lacks `inner.parts.scale_by_adam.mu.*no place for `inner.parts.trace.trace"):
        checkpoint.restore(tmp_path / "a", template)


def test_orbax_takes_optimizers_and_states_as_they_are(tmp_path: Path):
    optimizer = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-3))
    params, state = trained(optimizer)
    tree = {"params": params, "optimizer": optimizer, "state": state}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "standard", tree)
        checkpointer.wait_until_finished()
        assert_equal(as_numpy(checkpointer.restore(tmp_path / "standard", tree)), as_numpy(tree))
    with ocp.CheckpointManager(tmp_path / "managed") as manager:
        manager.save(3, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
        assert_equal(as_numpy(manager.restore(3, args=ocp.args.StandardRestore(tree))), as_numpy(tree))
    with ocp.CheckpointManager(tmp_path / "items") as manager:
        for step in (9, 10):
            items = {"params": ocp.args.StandardSave(params), "state": ocp.args.StandardSave(state)}
            manager.save(step, args=ocp.args.Composite(**items))
    restored, _ = checkpoint.restore(tmp_path / "items" / "10" / "state", optimizer.init(PARAMS))
    assert_equal(restored, state)
    for folder, inside in (("managed", ["3"]), ("items", ["10/params", "10/state"]), ("items/9", ["params", "state"])):
        with pytest.raises(ValueError, match=r"is a folder of checkpoints. Give the path of one: ") as error:
            checkpoint.restore(tmp_path / folder, state)
        assert re.findall("`([^`]+)`", str(error.value))[1:] == [f"{tmp_path}/{folder}/{x}" for x in inside]
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    v1.save(tmp_path / "v1", tree)
    assert_equal(as_numpy(v1.load(tmp_path / "v1", tree)), as_numpy(tree))
    for folder in ("standard", "managed/3", "v1"):
        template = {"params": PARAMS, "optimizer": optimizer, "state": optimizer.init(PARAMS)}
        restored, report = checkpoint.restore(tmp_path / folder, template)
        assert_equal(restored, tree)
        assert not report.fresh


def test_an_existing_checkpoint_is_replaced_only_on_request(tmp_path: Path):
    checkpoint.save(tmp_path / "a", {"w": jnp.ones(2)})
    with pytest.raises(FileExistsError, match=r"already exists\. Pass `overwrite=True` to replace it"):
        checkpoint.save(tmp_path / "a", {"w": jnp.zeros(2)})
    checkpoint.save(tmp_path / "a", {"w": jnp.zeros(2)}, overwrite=True)
    assert checkpoint.restore(tmp_path / "a", {"w": jnp.ones(2)})[0]["w"].tolist() == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_damaged_checkpoint_is_refused_and_nothing_is_lost(tmp_path: Path):
    # One array: of several, orbax closes its event loop under those that it still waits for when the first has failed.
    template = {"w": jnp.ones((64, 64))}
    with pytest.raises(FileNotFoundError, match="There is no checkpoint at"):
        checkpoint.restore(tmp_path / "a", template)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"cannot be read. It is damaged, incomplete"):
        checkpoint.restore(tmp_path / "a", template)
    (tmp_path / "a").rmdir()
    for i, victim in enumerate(("_METADATA", "manifest.ocdbt", "d")):
        path = tmp_path / str(i)
        checkpoint.save(path, jtu.tree_map(lambda x: x + 1, template))
        files = [path / victim] if (path / victim).is_file() else [p for p in path.rglob("d/*") if p.is_file()]
        for file in files:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(ValueError, match=r"cannot be read. It is damaged"):
            checkpoint.restore(path, template)
    np.testing.assert_array_equal(template["w"], 1)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"could not be written to .*Nothing was changed"):
        checkpoint.save(tmp_path / "file" / "a", {"w": jnp.ones(2)})


def test_a_restore_keeps_or_changes_the_sharding_as_the_template_says(tmp_path: Path):
    devices = np.array(jax.devices())
    over = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
    params = {"w": jax.device_put(jnp.arange(64.0).reshape(8, 8), over)}
    optimizer = mx.AdamW(1e-3)
    shardings = mx.state_sharding(optimizer, params)
    state = jax.jit(optimizer.init, out_shardings=shardings)(params)
    adam = state.inner["scale_by_adam"]
    assert adam.mu["w"].sharding == adam.nu["w"].sharding == over
    assert adam.count.sharding.is_fully_replicated
    assert len(adam.count.sharding.device_set) == len(devices)
    params, state = optimizer.step(params, state, params)
    checkpoint.save(tmp_path / "a", (params, state))
    grid = Mesh(devices.reshape(2, -1), ("x", "y"))
    for sharding in (over, NamedSharding(grid, PartitionSpec("y", "x")), jax.sharding.SingleDeviceSharding(devices[0])):
        spec = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)}
        places = mx.state_sharding(optimizer, spec)
        shapes = jax.eval_shape(optimizer.init, spec)
        abstract = jtu.tree_map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, places)
        (new, new_state), _ = checkpoint.restore(tmp_path / "a", (spec, abstract))
        assert new["w"].sharding == new_state.inner["scale_by_adam"].mu["w"].sharding == sharding
        assert_equal(as_numpy((new, new_state)), as_numpy((params, state)))


def test_counters_are_where_the_parameters_are():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    alone = mx.state_sharding(mx.ScaleByAdam(), {"w": jax.device_put(np.ones(2, np.float32), device)})
    assert jtu.tree_leaves(alone) == [device] * 3


def test_the_rename_that_fits_is_proposed():
    """Where shapes decide: a renamed module, a moment under another rule. Two layers of one shape are ambiguous."""
    saved = checkpoint.state_dict({"old": {"a": jnp.ones(2), "b": jnp.ones(3)}, "x": jnp.ones(5), "y": jnp.ones(5)})
    template = {"new": {"a": jnp.zeros(2), "b": jnp.zeros(3)}, "z": jnp.zeros(5)}
    with pytest.raises(ValueError, match=r"agree with `rename=\{'old': 'new'\}`. Pass it for renamed parts, or"):
        checkpoint.load_state_dict(template, saved)
    _, report = checkpoint.load_state_dict(template, saved, strict=False)
    assert report.proposed == {"old": "new"}
    assert report.fresh == ("new.a", "new.b", "z")
    filled, report = checkpoint.load_state_dict(template, saved, rename=report.proposed, strict=False)
    np.testing.assert_array_equal(filled["new"]["b"], np.ones(3))
    assert (report.fresh, report.unused, report.proposed) == (("z",), ("x", "y"), {})

    _, report = checkpoint.load_state_dict({"n": jnp.zeros(4)}, {"m": jnp.ones(5)}, strict=False)
    assert report.proposed == {}

    _, state = trained(mx.AdamW(1e-3))
    lion = mx.Lion(1e-3).init(PARAMS)
    _, report = checkpoint.load_state_dict(lion, checkpoint.state_dict(state), strict=False)
    assert report.proposed == {"scale_by_adam": "scale_by_lion"}
    carried, _ = checkpoint.load_state_dict(lion, checkpoint.state_dict(state), rename=report.proposed, strict=False)
    chex.assert_trees_all_equal(mx.tree.get(carried, "mu"), mx.tree.get(state, "mu"))


def test_no_rename_is_proposed_that_fills_a_part_of_a_state():
    """A moment of Lion is none of Adam's two, nor has an average of gradients the weight of one of parameters."""
    params, adam = {"w": jnp.ones((2, 3))}, mx.AdamW(0.1)
    for before, after in (
        (mx.Lion(0.1), adam),
        (mx.Muon(0.1), mx.Chain(mx.ClipByGlobalNorm(1.0), adam)),
        (mx.Lion(0.1), mx.MultiSteps(adam, 2)),
        (mx.Signum(0.1), mx.ParamEMA(adam)),
    ):
        saved, template = checkpoint.state_dict(before.init(params)), after.init(params)
        assert checkpoint.load_state_dict(template, saved, strict=False)[1].proposed == {}
        with pytest.raises(ValueError, match="do not agree") as error:
            checkpoint.load_state_dict(template, saved)
        assert "Shapes agree" not in str(error.value)

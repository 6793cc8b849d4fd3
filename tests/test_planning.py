"""`modulax.planning` on the devices of this process: the figures of a plan are those of the compiled program."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import modulax as mx
from modulax import planning
from modulax._protocol import step
from modulax.planning import Plan
from modulax.planning.__main__ import main
from modulax.planning._chips import CHIPS, chip_of
from modulax.planning._hlo import traffic
from modulax.planning._notes import notes
from modulax.planning._report import bytes_text, count_text, flops_text, seconds_text

from .probes import Proportional

OPTIMIZER = mx.AdamW(1e-3)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return planning.topology("cpu:8", data=4, model=2)


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


PARAMS = {"dense": {"kernel": shape(64, 32), "bias": shape(32)}, "steps": shape(dtype=jnp.int32)}


def test_the_figures_are_those_of_the_compiled_program(mesh: Mesh):
    """The program of a user: the same shardings, donated."""
    found = planning.plan(OPTIMIZER, PARAMS, mesh, spec={"dense": P("model"), "steps": None}, zero="data")

    def placed(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P("model") if x.shape else P()))

    params = jax.tree.map(placed, PARAMS)
    trained = params | {"steps": None}
    shardings = mx.state_sharding(OPTIMIZER, trained, zero="data")
    shapes = jax.eval_shape(OPTIMIZER.init, trained)
    state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    compiled = OPTIMIZER.jit_step().lower(trained, state, params).compile()
    memory, program = compiled.memory_analysis(), traffic(compiled.as_text() or "")
    assert memory is not None
    both = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert (found.temp_bytes, found.peak_bytes) == (memory.temp_size_in_bytes, both + memory.temp_size_in_bytes)
    assert (found.hbm_bytes, found.flops) == (program.bytes, program.flops)
    assert sum(c.count for c in found.collectives) == sum(c.times for c in program.collectives) > 0
    assert sum(found.transforms.values()) == found.hbm_bytes
    # Halves of the parameters, eighths of the moments, and two counters.
    kernel, bias = 64 * 32 * 4, 32 * 4
    assert found.param_bytes == (kernel + bias) // 2 + 4
    assert found.state_bytes == 2 * (kernel + bias) // 8 + 8
    assert found.ideal_bytes == (kernel + bias) // 2 + 2 * found.param_bytes + 2 * found.state_bytes
    assert found.parameters == 64 * 32 + 32
    assert memory.argument_size_in_bytes == found.param_bytes + found.state_bytes + (kernel + bias) // 2
    mu = found.state[0]
    assert (mu.name, mu.bytes, mu.whole_bytes, mu.copies) == ("scale_by_adam.mu", 8320 // 8, 8320, 1)
    assert (found.seconds, found.memory_bytes, found.fits, found.bounds) == (None, None, None, {})
    assert found.devices == "8 × cpu (data=4, model=2)"


def test_a_whole_step(mesh: Mesh):
    """Of a model with functions in it, with a loss that the optimizer asks for."""
    model = eqx.nn.MLP(16, 8, 32, 1, key=jax.random.key(0))

    def loss(model: Any, batch: Any) -> Any:
        return jnp.mean((jax.vmap(model)(batch["x"]) * batch["scale"]) ** 2)

    optimizer = mx.Chain(mx.PolyakSGD(), mx.Trace(0.9))
    found = planning.plan(optimizer, model, mesh, loss=loss, batch={"x": shape(8, 16), "scale": 2.0})
    examples = 8 // 4
    forward = 2 * examples * (16 * 32 + 32 * 8)
    assert found.flops == 2 * forward + 2 * examples * 32 * 8  # without the gradient with respect to the batch
    assert [c.kind for c in found.collectives] == ["all-reduce"]
    assert found.param_bytes == 4 * (16 * 32 + 32 + 32 * 8 + 8)
    assert found.state_bytes == found.param_bytes + 4, "and a counter"
    assert found.state[0].name == "trace.trace"
    assert "is replicated over `data`, `model`, 8 copies: pass `zero=('data', 'model')`." in "".join(found.notes)


def test_the_loss_is_passed_to_a_schedule(mesh: Mesh):
    params, optimizer = {"w": shape(8)}, mx.SGD(Proportional())
    found = planning.plan(optimizer, params, mesh, loss=lambda p, x: jnp.sum(p["w"] * x), batch=2.0)
    assert found.state_bytes == 8, "a counter and the loss"


def test_double_precision_that_is_not_enabled(mesh: Mesh):
    """Arrays of NumPy and shapes are float32 in the program."""

    def figures(params: Any, x: Any) -> Any:
        found = planning.plan(mx.SGD(0.1), params, mesh, loss=lambda w, x: jnp.sum(x @ w["a"] @ w["b"]), batch=x)
        return found.param_bytes, found.ideal_bytes, found.peak_bytes

    double = {"a": np.ones((4, 2)), "b": shape(2, dtype=np.float64)}
    single = {"a": shape(4, 2), "b": shape(2)}
    assert figures(double, shape(8, 4, dtype=np.float64)) == figures(single, shape(8, 4))


def test_specs(mesh: Mesh):
    """A function, axes by name, or the shardings that the parameters have on a mesh with the same names."""
    other = jax.make_mesh((2, 2), ("model", "data"), (AxisType.Auto,) * 2, devices=jax.devices()[:4])
    placed = {"w": jax.device_put(jnp.ones((8, 16)), NamedSharding(other, P("data", "model")))}
    bare = {"w": shape(8, 16)}
    sgd = mx.SGD(0.1)
    assert planning.plan(sgd, placed, mesh).param_bytes == 4 * 8 * 16 // 8
    seen = []

    def spec(path: str, x: Any) -> P:
        seen.append((path, x.shape))
        return P("model")

    assert planning.plan(sgd, bare, mesh, spec=spec).param_bytes == 4 * 8 * 16 // 2
    assert seen == [("w", (8, 16))]
    assert planning.plan(sgd, bare, mesh, spec=("data", "model")).param_bytes == 4 * 8 * 16 // 8
    assert planning.plan(sgd, bare, mesh, spec="data").param_bytes == 4 * 8 * 16 // 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"spec": P("nope")}, "the spec for `w`.*mesh data=4, model=2"),
        ({"spec": P("data")}, "the spec for `w`.*shape \\(6, 4\\)"),
        ({"spec": "nope"}, "the mesh has no axis 'nope', but `data`, `model`"),
        ({"spec": {"v": P()}}, "must be a tree of `PartitionSpec`s like `params`"),
        ({"zero": "nope"}, "no axis 'nope'"),
        ({"loss": jnp.sum}, r"`plan\(loss=...\)` needs `batch=` too"),
        ({"batch": shape(2)}, r"`plan\(batch=...\)` needs `loss=` too"),
        ({"loss": jnp.sum, "batch": shape(3)}, "the sharding of `batch`.*shape \\(3,\\)"),
    ],
)
def test_wrong_arguments(mesh: Mesh, arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        planning.plan(OPTIMIZER, {"w": shape(6, 4)}, mesh, **arguments)


def test_wrong_trees_and_meshes(mesh: Mesh, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    plan: Any = planning.plan
    with pytest.raises(ValueError, match=r"`DPSGD` takes one for each example. Plan the optimizer that follows"):
        plan(mx.DPSGD(0.1, 1.0, 1.0, key=0), {"w": jnp.ones(3)}, mesh)
    with pytest.raises(ValueError, match="has no parameters to train"):
        planning.plan(OPTIMIZER, {"n": shape(3, dtype=jnp.int32)}, mesh)
    with pytest.raises(TypeError, match=r"Write `planning.topology\(\"v5e:4x4\", data=16\)`"):
        plan(OPTIMIZER, PARAMS, "v5e:4x4")
    with pytest.raises(ValueError, match="in another order"):
        plan(PARAMS, OPTIMIZER, mesh)


# --- Topologies ----------------------------------------------------------------------------------


def test_devices_of_this_process():
    assert planning.topology("cpu:8").shape == {"data": 8}
    assert planning.topology("cpu:4", num_slices=2).shape == {"slice": 2, "data": 4}
    assert planning.topology("cpu:4", num_slices=2, data=2, model=2).shape == {"slice": 2, "data": 2, "model": 2}
    assert planning.topology("cpu:4", num_slices=2, data=8).shape == {"data": 8}
    assert planning.topology("CPU:1").axis_types == (AxisType.Auto,)


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("cpu:8", {"data": 4}, "has 8 devices, and the axes data=4 have 4. The product of the axes must be 8"),
        ("cpu:9", {}, r'this process has 8 CPU devices. Write `jax.config.update\("jax_num_cpu_devices", 9\)`'),
        ("v5e:16x16", {"data": 8, "model": 8}, "has 256 devices, and the axes data=8 × model=8 have 64"),
        ("tpu7x:2x2x1", {"data": 4}, "has 8 devices"),
        ("v5e", {}, 'write the number of chips along each of 2 dimensions .* `"v5e:4x4"`'),
        ("v5p:8x8", {}, 'each of 3 dimensions .* `"v5p:4x4x4"`'),
        ("v5e:0x4", {}, "number of chips"),
        ("h100:2x4", {}, 'write the number of devices after the colon, such as `"h100:8"`'),
        ("h100:12", {}, "a host has 8"),
        ("v6:4x4", {}, "Did you mean `v6e`"),
        ("cpu:4", {"num_slices": 0}, "must be at least 1"),
        ("cpu:4", {"num_slices": 2, "data": 4, "slice": 2}, "data=4 is not. Write `slice=2` before"),
        ("cpu:3", {"num_slices": 2, "model": 3, "data": 2}, "the first axis is over the slices"),
    ],
)
def test_wrong_topologies(name: str, arguments: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        planning.topology(name, **arguments)


def test_a_compiler_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    def missing(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(topologies, "get_topology_desc", missing)
    with pytest.raises(ImportError, match=r'pip install "modulax\[planning\]"'):
        planning.topology("v5e:4x4")
    with pytest.raises(ImportError, match=rf"pip install jax-cuda12-plugin=={jax.__version__}"):
        planning.topology("h100:8")


def test_what_libtpu_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    """The variables are set while it is loaded, and then as before; a user's own are kept."""
    calls = []

    def describe(name: str, platform: str, **options: Any) -> Any:
        calls.append((name, platform, options, os.environ["TPU_ACCELERATOR_TYPE"], "TPU_SKIP_MDS_QUERY" in os.environ))
        return SimpleNamespace(devices=jax.devices()[:4])

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v6e-4")
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)  # JAX sets it where there is no TPU
    before = dict(os.environ)
    planning.topology("v4:2x2x1")
    options = {"chips_per_host_bounds": (2, 2, 1), "chip_config_name": "megacore"}
    assert calls == [("v4:2x2x1", "tpu", options, "v6e-4", True)]
    assert os.environ == before
    # On a TPU, the runtime computes with what it finds there.
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/accel0"])
    planning.topology("v4:2x2x1")
    assert calls[1][3:] == ("v6e-4", False)


def test_figures_of_chips():
    assert all(chip_of(kind) is chip for chip in CHIPS.values() for kind in chip.kinds)
    assert chip_of("cpu") is None
    v5e = chip_of("TPU v5 lite")
    assert v5e is not None
    assert (v5e.bandwidth, v5e.flops, v5e.links) == (819e9, 197e12, 200e9)


# --- The report ----------------------------------------------------------------------------------


def report(**changes: Any) -> Plan:
    """A plan of round figures, that fits."""
    figures: dict[str, Any] = {
        "devices": "16 × TPU v5 lite (data=16)",
        "parameters": 2**30,
        "param_bytes": 2**28,
        "state_bytes": 2**29,
        "temp_bytes": 0,
        "peak_bytes": 2**30,
        "memory_bytes": 2**34,
        "hbm_bytes": 7 * 2**28,
        "ideal_bytes": 7 * 2**28,
        "flops": 0.0,
        "seconds": 2.5e-3,
        "bounds": {"memory": 2.5e-3, "links": 1e-6},
        "collectives": (),
        "state": (planning.StateField("scale_by_adam.mu", 2**29, 2**33, 1, ()),),
        "transforms": {"ScaleByAdam": 7 * 2**28, "AddDecayedWeights": 100},
        "compile_seconds": 1.0,
        "notes": (),
    }
    return Plan(**(figures | changes))


def test_the_tables():
    gather = planning.Communication("all-gather", "ScaleByMuon", 1200, 2**30, 0.0)
    shown = report(collectives=(gather,), notes=("look here.",))
    assert shown.fits
    text = str(shown)
    assert "of 16 GiB: 6%" in text
    assert "2.5 ms  memory 2.5 ms, links 1 µs" in text
    for line in (
        "1.07 B parameters on 16 × TPU v5 lite (data=16); all figures are per device",
        "scale_by_adam.mu           512 MiB       1",
        "ScaleByAdam     1.75 GiB",
        "others             100 B",
        "all-gather  ScaleByMuon  1,200  1 GiB",
        "note: look here.",
    ):
        assert line in text.splitlines()
    html = shown._repr_html_()
    assert html.count("<table>") == 4
    assert "<p>look here.</p>" in html


def mu(copies: int, *axes: str, memory: str = "device") -> dict[str, Any]:
    return {"state": (planning.StateField("mu", 2**29, 2**29, copies, axes, memory),)}


EXCHANGED = planning.Communication("all-to-all", "ScaleByMuon", 2, 2**30, 0.0)
REFUSED = "the compiler refused the program, so that bytes moved, operations and transfers are unknown."
OVER_MODEL = "`mu` is replicated over `model`, 2 copies: pass `zero=('data', 'model')`."
INDIVISIBLE = "`mu` is replicated over `data`, 2 copies: none of its dimensions can be divided over it."
NOTES: list[tuple[dict[str, Any], Any, str]] = [
    ({"peak_bytes": 2**35}, None, "the peak of 32 GiB is 16 GiB more than the 16 GiB of a device: it does not fit."),
    ({"hbm_bytes": None}, None, REFUSED),
    ({"temp_bytes": 2**28}, None, "temporary arrays take 256 MiB, 4 bytes per parameter."),
    ({"hbm_bytes": 7 * 2**29}, None, "the update moves 2 times the ideal bytes. Most is of `ScaleByAdam`, 1.75 GiB."),
    ({"collectives": (EXCHANGED,)}, None, "`ScaleByMuon` exchanges 1 GiB in 2 all-to-alls."),
    (mu(16, "data"), None, "`mu` is replicated over `data`, 16 copies: pass `zero='data'`."),
    (mu(2, "model"), "data", OVER_MODEL),
    (mu(2, "data"), "data", INDIVISIBLE),
    (mu(1, memory="pinned_host"), None, "`mu`, 512 MiB, is in the memory `pinned_host`."),
]


@pytest.mark.parametrize("changes, zero, message", NOTES)
def test_notes(changes: dict[str, Any], zero: Any, message: str):
    assert list(notes(report(**changes), 2**26, zero, True)) == [message]


def test_a_step_that_returns_another_sharding(mesh: Mesh, monkeypatch: pytest.MonkeyPatch):
    """Without what places the results of `step`, XLA divides the new parameters as their updates are."""
    params = {"w": shape(64, 32), "b": shape(32), "three": shape(3)}
    both = ("data", "model")
    assert planning.plan(OPTIMIZER, params, mesh, zero=both).resharded == ()
    monkeypatch.setattr(step, "placed_like", lambda new, old: new)
    found = planning.plan(OPTIMIZER, params, mesh, zero=both)
    first = found.notes[0]
    assert found.resharded == ("b", "w")
    assert first.startswith("`b`, `w` come back with other shardings"), first
    assert first.endswith("Give `jax.jit` those of the arguments: `out_shardings=(of_params, of_state)`.")


def test_what_is_small_or_as_it_should_be_has_no_note():
    small = planning.StateField("count", 4, 4, 16, ("data",))
    reduced = planning.Communication("all-reduce", "ClipByGlobalNorm", 1, 4, 8.0)
    assert not [*notes(report(state=(small,), collectives=(reduced,)), 2**26, None, True)]
    assert not [*notes(report(temp_bytes=2**33, hbm_bytes=2**40), 2**26, None, False)], "a whole step has activations"
    assert not [*notes(report(peak_bytes=2**34), 2**26, None, True)], "it just fits"


def test_units():
    assert [bytes_text(x) for x in (None, 0, 1000)] == ["", "0 B", "1e+03 B"]
    assert [bytes_text(x) for x in (1536, 2**30, 1500 * 2**30)] == ["1.5 KiB", "1 GiB", "1,500 GiB"]
    assert [flops_text(x) for x in (None, 0.0, 12.0, 2.5e9, 3e15)] == ["", "", "12 FLOP", "2.5 GFLOP", "3 PFLOP"]
    assert [seconds_text(x) for x in (2.0, 0.0123, 4.5e-6, 3e-9)] == ["2 s", "12.3 ms", "4.5 µs", "3 ns"]
    assert [count_text(x) for x in (12, 1999, 6.7e9, 2e12)] == ["12", "2 K", "6.7 B", "2 T"]


# --- The command ---------------------------------------------------------------------------------


def test_the_command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "planned_run.py").write_text(
        """
import jax, jax.numpy as jnp, modulax as mx
from jax.sharding import PartitionSpec
optimizer = mx.SGD(0.1, momentum=0.9)
make = lambda: mx.SGD(0.1)
def params():
    return {"w": jnp.ones((8, 4))}
def specs(path, x):
    return PartitionSpec("model")
def loss(params, batch):
    return jnp.mean((batch @ params["w"]) ** 2)
batch = jax.ShapeDtypeStruct((4, 8), "float32")
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    run = ["planned_run:optimizer", "planned_run:params", "--topology", "cpu:4", "--mesh", "data=2,model=2"]
    main([*run, "--zero", "data,model", "--spec", "planned_run:specs"])
    shown = capsys.readouterr().out
    assert "32 parameters on 4 × cpu (data=2, model=2)" in shown
    assert "trace.trace" in shown
    whole = ["--loss", "planned_run:loss", "--batch", "planned_run:batch"]
    main(["planned_run:make", *run[1:], "--spec", "data,model", *whole])
    assert "matrix products" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no axis"):
        main([*run, "--zero", "data", "--spec", "x"])
    with pytest.raises(SystemExit):
        main([*run, "--mesh", "data"])
    assert "write axes and sizes, data=32,model=8, in place of 'data'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="write the module and the name in it"):
        main(["planned_run", *run[1:]])

"""ZeRO-1 on eight devices, with FSDP, on explicit axes and in NNX; state in the memory of the host; two processes."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import modulax as mx
import modulax.nnx
from modulax import checkpoint
from modulax._support import gathering

from . import train_over_processes as job

DEVICES = np.array(jax.devices("cpu")[:8])
MESH, GRID = Mesh(DEVICES, ("data",)), Mesh(DEVICES.reshape(2, 4), ("model", "data"))
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 16)).astype(np.float32)
PARAMS: dict[str, Any] = {
    "down": RANDOM.normal(size=(32, 8)).astype(np.float32) / 4,
    "gain": np.ones(32, np.float32),
    "three": np.ones(3, np.float32),
    "up": RANDOM.normal(size=(16, 32)).astype(np.float32) / 4,
}
OPTIMIZERS: dict[str, mx.AbstractTransform] = {
    "AdamW": mx.AdamW(1e-2),
    "Adafactor": mx.Adafactor(1e-2, min_dim_size_to_factor=8, momentum=0.9),
    "GaLore": mx.GaLore(1e-2, 8),
    "Muon": mx.Muon(1e-2),
    "SM3": mx.SM3(1e-2),
    "LowBit": mx.LowBit(mx.AdamW(1e-2), block=4, min_size=64),
    "Offload": mx.Offload(mx.AdamW(1e-2)),
}


def loss(params: Any, x: Any) -> jax.Array:
    params = jtu.tree_map(lambda p: p.astype(jnp.float32), params)
    hidden = jnp.tanh(x @ params["up"]) * params["gain"][None]
    return jnp.mean((hidden @ params["down"]) ** 2) + jnp.sum(params["three"] ** 2)


@jax.jit
def train_step(optimizer: Any, params: Any, state: Any, x: Any) -> Any:
    return optimizer.step(jax.grad(loss)(params, x), state, params)


def on_each(mesh: Mesh, dtype: Any = jnp.float32) -> Any:
    """The parameters, replicated."""
    return jax.device_put(jtu.tree_map(lambda p: p.astype(dtype), PARAMS), NamedSharding(mesh, P()))


def batch(mesh: Mesh) -> jax.Array:
    return jax.device_put(X, NamedSharding(mesh, P("data")))


def divided(optimizer: Any, params: Any) -> Any:
    shardings = mx.state_sharding(optimizer, params, zero="data")
    return jax.jit(optimizer.init, out_shardings=shardings)(params), shardings


def assert_placed(tree: Any, shardings: Any) -> None:
    for x, sharding in zip(jtu.tree_leaves(tree), jtu.tree_leaves(shardings), strict=True):
        assert x.sharding.is_equivalent_to(sharding, x.ndim), (x.sharding, sharding)


def assert_near(tree: Any, other: Any, tolerance: float = 1e-6) -> None:
    for a, b in zip(jtu.tree_leaves(tree), jtu.tree_leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance)


def compiled_step(optimizer: Any, params: Any, state: Any, grads: Any, **options: Any) -> Any:
    """A step, compiled for parameters, state and gradients in this order."""
    return jax.jit(lambda p, s, g: optimizer.step(g, s, p), **options).lower(params, state, grads).compile()


def shardings_of(tree: Any) -> Any:
    return jtu.tree_map(lambda x: x.sharding, tree)


# --- ZeRO-1


@pytest.mark.parametrize("name, dtype", [*((name, jnp.float32) for name in OPTIMIZERS), ("Muon", jnp.bfloat16)])
def test_each_device_holds_an_eighth_of_the_state(name: str, dtype: Any):
    """From `init` on, step after step; the results are those of a replicated state, up to rounding."""
    optimizer, x = OPTIMIZERS[name], batch(MESH)
    params = alone = on_each(MESH, dtype)
    shardings = mx.state_sharding(optimizer, params, zero="data")
    init = jax.jit(optimizer.init, out_shardings=shardings).lower(params).compile()
    state = init(params)
    memory: Any = init.memory_analysis()
    assert_placed(state, shardings)
    alone_state = jax.jit(optimizer.init)(alone)
    leaves = jtu.tree_leaves(state)
    rest = sum(x.nbytes for x in leaves if x.size % 8)  # scalars, and the moments of `three`
    eighth = sum(x.nbytes for x in leaves if x.size % 8 == 0) // 8
    assert sum(x.addressable_shards[0].data.nbytes for x in leaves if x.size % 8 == 0) == eighth
    made = memory.output_size_in_bytes + memory.host_output_size_in_bytes
    made += 0 if name == "LowBit" else memory.temp_size_in_bytes  # which quantizes zeros
    assert made <= 1.1 * eighth + rest + 8 * len(leaves)  # a pointer to each result

    for _ in range(3):
        params, state = train_step(optimizer, params, state, x)
        alone, alone_state = train_step(optimizer, alone, alone_state, x)
        assert_placed((params, state), (shardings_of(alone), shardings))
    assert_near(params, alone, 1e-6 if dtype == jnp.float32 else 2.0**-8)


def test_a_step_gathers_the_parameters_and_nothing_else():
    """The moments are never whole: each device needs the memory for its part of them."""
    optimizer, params, x = mx.AdamW(1e-2), on_each(MESH), batch(MESH)
    state, _ = divided(optimizer, params)
    donating = jax.jit(lambda *args: train_step(*args), donate_argnums=(1, 2))
    compiled = donating.lower(optimizer, params, state, x).compile()
    gathered = re.findall(r"= (.*?) all-gather\(", compiled.as_text() or "")
    shapes = sorted(
        tuple(map(int, dims.split(","))) for each in gathered for dims in re.findall(r"f32\[([\d,]+)\]", each)
    )
    assert shapes == sorted(p.shape for p in PARAMS.values() if p.size % 8 == 0)
    whole = jax.jit(optimizer.init)(params)
    replicated = donating.lower(optimizer, params, whole, x).compile()
    memories: list[Any] = [replicated.memory_analysis(), compiled.memory_analysis()]
    saved = memories[0].argument_size_in_bytes - memories[1].argument_size_in_bytes
    moments = 2 * 4 * sum(p.size for p in PARAMS.values() if p.size % 8 == 0)
    assert saved == moments * 7 // 8


SUMS: dict[str, mx.AbstractTransform] = {
    "AdamW": mx.AdamW(1e-2, weight_decay=0.1),
    "Muon": mx.Muon(1e-2),
    "ParamEMA": mx.ParamEMA(mx.AdamW(1e-2), 0.9),
    "SkipSpikes": mx.SkipSpikes(mx.AdamW(1e-2)),
    "MultiSteps": mx.MultiSteps(mx.AdamW(1e-2), 2),
}
# One that is gathered: XLA for CPU confuses several.
ONE_LARGE = {"down": (2, 64, 256), "gain": (128,)}
LARGE = {**ONE_LARGE, "up": (4, 256, 512), "out": (256, 1024)}


@pytest.mark.parametrize("name, mesh, spec, dtype", [
    *((name, MESH, P(), jnp.float32) for name in SUMS),
    ("AdamW", GRID, P("model"), jnp.bfloat16),
])  # fmt: skip
def test_new_parameters_are_gathered_in_pieces(monkeypatch: Any, name: str, mesh: Mesh, spec: P, dtype: Any):
    """Into the donated buffers, with the bits of a gather of all updates, which a step that donates nothing has."""
    monkeypatch.setattr(gathering, "_LEAST", 1 << 12)
    monkeypatch.setattr(gathering, "_LEFT_OUT", frozenset())
    optimizer = SUMS[name]
    params, grads = (
        {
            k: jax.device_put(RANDOM.normal(size=s).astype(dtype), NamedSharding(mesh, P(*spec[: len(s) - 1])))
            for k, s in ONE_LARGE.items()
        }
        for _ in range(2)
    )
    state, _ = divided(optimizer, params)
    whole = compiled_step(optimizer, params, state, grads)
    in_pieces = compiled_step(optimizer, params, state, grads, donate_argnums=(0, 1))
    assert gathering._NAME not in whole.as_text()
    assert gathering._NAME in in_pieces.as_text()
    expected = params, state
    found = jtu.tree_map(jnp.copy, expected)
    for is_moved in (name != "MultiSteps", True):
        before = expected
        expected = whole(*expected, grads)
        found = in_pieces(*found, grads)
        assert_placed(found, shardings_of((params, state)))
        for a, b in zip(jtu.tree_leaves(found), jtu.tree_leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)
        for k, p in before[0].items():
            assert np.array_equal(p, expected[0][k]) != is_moved


def test_parameters_that_are_divided_like_their_state_stay_as_they_are(monkeypatch: Any):
    monkeypatch.setattr(gathering, "_LEAST", 1 << 12)
    monkeypatch.setattr(gathering, "_LEFT_OUT", frozenset())
    optimizer, params = SUMS["AdamW"], {"out": jax.device_put(jnp.ones((256, 1024)), NamedSharding(MESH, P("data")))}
    state, _ = divided(optimizer, params)
    compiled = compiled_step(optimizer, params, state, params, donate_argnums=(0, 1))
    assert gathering._NAME not in compiled.as_text()
    found = compiled(*jtu.tree_map(jnp.copy, (params, state)), params)
    assert_placed(found, shardings_of((params, state)))


@pytest.mark.parametrize("name, loops", [("AdamW", 1), ("MultiSteps", 2)])
def test_pieces_of_several_parameters_are_gathered_by_few_loops(monkeypatch: Any, name: str, loops: int):
    """In the program for a TPU; in one for a CPU, nothing is gathered in pieces.

    Where a step may move nothing, another loop of at most one round is around them.
    """
    monkeypatch.setattr(gathering, "_LEAST", 1 << 12)
    place = NamedSharding(MESH, P())
    params = {k: jax.ShapeDtypeStruct(s, jnp.float32, sharding=place) for k, s in LARGE.items()}
    optimizer = SUMS[name]
    state = jtu.tree_map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(optimizer.init, params),
        mx.state_sharding(optimizer, params, zero="data"),
    )
    step = jax.jit(lambda p, s, g: optimizer.step(g, s, p), donate_argnums=(0, 1)).trace(params, state, params)
    program = step.lower(lowering_platforms=("tpu",)).as_text()
    assert program.count("stablehlo.while") == loops
    assert program.count("stablehlo.all_gather") == 3  # but for the gain, which is small
    assert "stablehlo.while" not in step.lower(lowering_platforms=("cpu",)).as_text()


def test_a_step_in_pieces_has_derivatives_and_batches():
    """Where a step is differentiated or mapped, a program gathers as XLA does."""
    params = {"w": jax.device_put(jnp.ones((8, 16)), NamedSharding(MESH, P()))}
    state, _ = divided(SUMS["AdamW"], params)

    @jax.jit
    def after(scale: Any, params: Any) -> jax.Array:
        return jnp.sum(SUMS["AdamW"].step(jtu.tree_map(lambda p: scale * p, params), state, params)[0]["w"] ** 2)

    one, derivative = jax.value_and_grad(after, argnums=1)(0.5, params)
    assert float(jnp.min(derivative["w"])) > 0
    many = jax.vmap(after, in_axes=(0, None))(jnp.array([0.5, 2.0]), params)
    np.testing.assert_allclose(many[0], one, rtol=1e-6)


@pytest.mark.parametrize("shape, of_param, zero, expected", [
    ((16, 8), P(), "data", P("data", None)),
    ((8, 16), P(), "data", P(None, "data")),  # the longest dimension
    ((6, 4), P(), "data", P(None, "data")),  # the longest that 4 devices divide
    ((6, 3), P(), "data", P()),
    ((16, 8), P("data"), "data", P("data")),  # FSDP
    ((16, 8), P("model"), "data", P("model", "data")),
    ((16, 4), P("model"), "data", P(("model", "data"))),
    ((16,), P("model"), "data", P(("model", "data"))),
    ((4,), P("model"), "data", P("model")),  # 2 numbers on each device
    ((16, 8), P(), ("model", "data"), P(("model", "data"), None)),
    ((16, 8), P(None, "model"), ("model", "data"), P("data", "model")),
    ((16, 8), P(), None, P()),
    ((0, 6), P(), "data", P()),
    ((4, 512), P(), "data", P(None, "data")),  # parts of whole rows of tiles
    ((4, 256), P(), "data", P("data")),  # not of half a row
    ((3, 256), P(), "data", P(None, "data")),  # if there is a choice
    ((256,), P(), "data", P("data")),
    ((), P(), "data", P()),
])  # fmt: skip
def test_where_an_array_is_divided(shape: Any, of_param: Any, zero: Any, expected: Any):
    params = {"w": jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(GRID, of_param))}
    found = mx.state_sharding(mx.ScaleByAdam(), params, zero=zero)
    assert found.mu["w"].is_equivalent_to(NamedSharding(GRID, expected), len(shape)), found.mu["w"]
    assert found.count.is_fully_replicated


def test_with_fsdp_the_state_follows_and_the_rest_is_divided():
    """Moments like their parameters, and factors along the axis that they keep."""
    optimizer, x = OPTIMIZERS["Adafactor"], batch(GRID)
    alone = on_each(GRID)
    params = alone | {"up": jax.device_put(PARAMS["up"], NamedSharding(GRID, P("data", "model")))}
    (state, shardings), alone_state = divided(optimizer, params), jax.jit(optimizer.init)(alone)
    specs = [mx.tree.get(shardings, name).spec for name in ("v_row.up", "v_col.up", "ema.up", "ema.down")]
    assert specs == [P("data"), P(("model", "data")), P("data", "model"), P("data", None)]
    for _ in range(2):
        params, state = train_step(optimizer, params, state, x)
        alone, alone_state = train_step(optimizer, alone, alone_state, x)
    assert params["up"].sharding.spec == P("data", "model")
    assert_placed(state, shardings)
    assert_near(params, alone)


def test_factors_are_divided_along_the_axes_that_they_keep():
    """Which axis it is must be known, or not matter: two sides of a square may be sharded in different ways."""
    arrays = {
        "wide": ((8, 16), P("data", "model")),
        "square": ((8, 8), P("data")),
        "stack": ((4, 8, 16), P(None, "data", "model")),
        "equal": ((8, 8), P()),
    }
    params = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(GRID, spec))
        for name, (shape, spec) in arrays.items()
    }
    found = mx.state_sharding(mx.ScaleByFactoredRMS(min_dim_size_to_factor=2), params)
    expected = {"wide": P("data"), "square": P(), "stack": P(None, "data"), "equal": P(None)}
    assert {name: x.spec for name, x in found.v_row.items()} == expected
    assert found.v_col["stack"].spec == P(None, "model")
    sums = mx.state_sharding(mx.ScaleBySM3(), params).mu["wide"]
    assert [x.spec for x in sums] == [P("data"), P("model")]


def test_every_way_to_step_keeps_the_shardings():
    """Compiled by the library or by the caller; `update` and `apply_updates`, outside of any program too."""
    optimizer, params = mx.AdamW(1e-2), on_each(MESH)
    state, shardings = divided(optimizer, params)
    places = shardings_of(params)
    updates, stepped = optimizer.update(params, state, params)
    moved = mx.apply_updates(params, updates)
    assert_placed((moved, stepped), (places, shardings))
    assert_placed(jax.jit(lambda p, s: optimizer.step(p, s, p))(params, state), (places, shardings))

    def train(params: Any, state: Any) -> Any:
        body = lambda carry, _: (optimizer.step(carry[0], carry[1], carry[0]), None)  # noqa: E731
        return jax.lax.scan(body, (params, state), None, length=2)[0]

    # XLA chooses where the carry of a loop is, but for what the caller says.
    assert_placed(jax.jit(train, out_shardings=(places, shardings))(params, state), (places, shardings))
    again = optimizer.step(params, state, params, donate=True)
    assert_placed(again, (places, shardings))
    assert_near(again[0], moved)


@pytest.mark.parametrize("optimizer", [mx.ScheduleFreeAdamW(1e-2), mx.ParamEMA(mx.AdamW(1e-2))], ids=["z", "mean"])
def test_evaluation_parameters_are_where_the_parameters_are(optimizer: mx.AbstractTransform):
    params = on_each(MESH)
    state, _ = divided(optimizer, params)
    for found in (optimizer.eval_params(state, params), jax.jit(optimizer.eval_params)(state, params)):
        assert_placed(found, shardings_of(params))


MULTI = mx.MultiSteps(mx.AdamW(1e-2), 2)


@pytest.mark.parametrize(
    "optimizer",
    [mx.AdamW(1e-2), MULTI, mx.SkipSpikes(MULTI), mx.ApplyIfFinite(mx.Muon(1e-2), 2)],
    ids=["AdamW", "MultiSteps", "SkipSpikes of MultiSteps", "ApplyIfFinite of Muon"],
)
def test_everything_that_a_step_returns_is_placed(optimizer: mx.AbstractTransform):
    """XLA for GPU returned whole parameters out of a `cond`; `nox -s accelerators` compiles for one, a CPU keeps them.

    Nothing is placed in the branches: XLA gathered the parameters for a `cond` in another one.
    """
    params = {"w": jnp.ones((8, 8)), "b": jnp.ones(8)}
    jaxpr: Any = jax.make_jaxpr(optimizer.step)(params, jax.eval_shape(optimizer.init, params), params).jaxpr
    placing = [e for e in jaxpr.eqns if e.primitive.name == "modulax_shard_like"]
    placed = {x for e in placing for x in e.outvars}
    assert {x for x in jaxpr.outvars if x.aval.ndim} - placed <= {*jaxpr.invars}
    inside = [e for e in jaxpr.eqns if e.primitive.name == "cond" and "modulax_shard_like" in str(e)]
    assert (len(placing), inside) == (2, [])


@pytest.mark.parametrize("params, zero, says", [
    (on_each(GRID), ("data", "dp"), r"the mesh of the parameters has no axis 'dp'\. It has `model`, `data`"),
    (jtu.tree_map(jnp.asarray, PARAMS), "data", r"and they are on none\. Replicate them over one first"),
])  # fmt: skip
def test_an_axis_that_is_not_there(params: Any, zero: Any, says: str):
    with pytest.raises(ValueError, match=says):
        mx.state_sharding(mx.AdamW(1e-3), params, zero=zero)


# --- NNX


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
def test_an_nnx_optimizer_divides_its_state(graph: bool):
    """Also where NNX itself places variables by their names."""

    class Net(nnx.Module):
        def __init__(self, rngs: Any):
            names = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, None))
            self.up = nnx.Linear(16, 32, kernel_init=names, use_bias=False, rngs=rngs)
            self.down = nnx.Linear(32, 8, use_bias=False, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.down(jnp.tanh(self.up(x)))

    @nnx.jit(graph=graph)
    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.update(model, nnx.grad(lambda model: jnp.mean(model(x) ** 2), graph=graph)(model))

    results = []
    for zero in ("data", None):
        with jax.set_mesh(MESH):
            model = Net(nnx.Rngs(0))
            nnx.update(model, jax.device_put(nnx.state(model), NamedSharding(MESH, P())))
            optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2), graph=graph, zero=zero)
            for _ in range(2):
                step(model, optimizer, batch(MESH))
        moments = jtu.tree_leaves([mx.tree.get(optimizer.state, name) for name in ("mu", "nu")])
        shapes = {x.addressable_shards[0].data.shape for x in moments}
        assert shapes == ({(16, 4), (4, 8)} if zero else {(16, 32), (32, 8)})
        assert all(x.sharding.is_fully_replicated for x in jtu.tree_leaves(nnx.as_pure(nnx.state(model))))
        results.append(nnx.as_pure(nnx.state(model)))
    assert_near(*results)


def test_an_nnx_optimizer_that_is_made_in_a_program_cannot_be_divided():
    with pytest.raises(ValueError, match=r"Create the optimizer outside `nnx\.jit`"):
        nnx.eval_shape(lambda: modulax.nnx.Optimizer(nnx.Linear(8, 8, rngs=nnx.Rngs(0)), mx.AdamW(1e-3), zero="data"))


# --- Offload


def memories(state: Any) -> set[str]:
    return {x.sharding.memory_kind for x in jtu.tree_leaves(state) if x.ndim}


def test_offloaded_states_live_in_the_memory_of_the_host(tmp_path: Path):
    """Before and after each step, after a restore, and with everything donated; the results are equal bit for bit."""
    inner = mx.ScheduleFreeAdamW(mx.schedules.Linear(1e-2, 1e-3, 10), b1=0.9)
    optimizer = mx.Offload(inner)
    params = whole = jtu.tree_map(jnp.asarray, PARAMS)
    state, whole_state = optimizer.init(params), inner.init(params)
    assert memories(state) == {"pinned_host"}
    for _ in range(2):
        params, state = optimizer.step(params, state, params)
        whole, whole_state = inner.step(whole, whole_state, whole)
        assert (memories(state), memories(params)) == ({"pinned_host"}, {"device"})
    checkpoint.save(tmp_path / "state", state)
    restored, _ = checkpoint.restore(tmp_path / "state", optimizer.init(params))
    on_device = jtu.tree_map(lambda x: jnp.asarray(np.asarray(x)), state)  # what another format restores
    averaged = optimizer.eval_params(state, params)
    assert (memories(restored), memories(averaged)) == ({"pinned_host"}, {"device"})
    np.testing.assert_array_equal(averaged["up"], inner.eval_params(whole_state, whole)["up"])
    expected = inner.step(params, whole_state, params)
    for given, donate in ((restored, True), (on_device, False)):  # JAX cannot donate to another memory
        found = optimizer.step(params, given, jtu.tree_map(jnp.copy, params), donate=donate)
        assert memories(found[1]) == {"pinned_host"}
        for a, b in zip(jtu.tree_leaves(found), jtu.tree_leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_offloaded_state_of_many_arrays_is_made_without_a_program():
    params = [jnp.ones(2)] * 301
    assert memories(mx.Offload(mx.Trace(0.9)).init(params)) == {"pinned_host"}


def test_a_backend_without_that_memory(monkeypatch: pytest.MonkeyPatch):
    device = SimpleNamespace(platform="abacus", addressable_memories=lambda: [SimpleNamespace(kind="beads")])
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    with pytest.raises(ValueError, match=r"devices of the platform 'abacus' have no such memory\. They have `beads`"):
        jax.eval_shape(mx.Offload(mx.SGD(0.1, momentum=0.9)).init, {"new": jnp.ones(5)})


# --- Processes


def test_a_checkpoint_of_two_processes_is_continued_by_one(tmp_path: Path):
    """Trained with ZeRO over both; the result is that of one process without interruption."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = os.environ.get("XLA_FLAGS", "")
    environment = os.environ | {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train_over_processes", str(tmp_path), str(process), str(port)],
            env=environment,
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(2)
    ]
    expected, _ = job.train(job.mesh(1), steps=4)
    for process in processes:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output[-3000:]
    found, first = job.train(job.mesh(1), steps=4, resume=tmp_path / "run")
    assert first == 2
    assert_near(found, expected)

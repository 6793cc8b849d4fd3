"""`sweeps.run`: one program per structure, each member as alone, memory, wrong calls."""

import csv
import functools
import operator
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules, sweeps
from modulax.sweeps import _memory, _population, _training
from modulax.sweeps._experiment import Experiment

from . import settings

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
X = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(8, 2)
Y = np.sin(3 * X[:, :1])
TRACED: Counter[str] = Counter()


def linear(optimizer: Any, key: Any) -> Any:
    """Train a linear model on all examples; the loss before each step."""
    TRACED["linear"] += 1

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((X @ p["w"] + p["b"][None] - Y) ** 2))(params)
        return optimizer.step(grads, state, params), loss

    params = {"w": jax.random.normal(key, (2, 1)), "b": jnp.zeros((1,))}
    _, losses = jax.lax.scan(step, (params, optimizer.init(params)), length=4)
    return {"loss": losses[-1], "curve": losses}


def assert_each_member_is_as_alone(results: sweeps.Results, train: Any) -> None:
    alone = jax.jit(train)
    for i, member in enumerate(results.sweep):
        for j, key in enumerate(results.keys):
            found = jax.tree.map(lambda x, i=i, j=j: x[i, j], results.metrics)
            chex.assert_trees_all_close(found, alone(member, key), rtol=1e-5, atol=0)


@pytest.mark.parametrize("members, seeds, chunk", [(1, 1, None), (7, 3, 3), (5, 1, 2), (4, 2, 9)])
def test_train_is_traced_twice_whatever_the_members_seeds_and_chunks(members: int, seeds: int, chunk: int | None):
    TRACED.clear()
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=np.linspace(0.01, 0.2, members))
    results = sweeps.run(sweep, linear, seeds=seeds, chunk=chunk, **QUIET)
    assert TRACED["linear"] == 2
    assert results.chunk == (min(chunk or members, members),)
    assert results.metrics["curve"].shape == (members, seeds, 4)
    if members == 7:
        assert_each_member_is_as_alone(results, linear)


def test_members_compute_what_is_meant_for_few_steps_in_these_alone():
    """All hyperparameters of a batch have an axis, and so has every condition on them."""
    calls = list[int]()

    def noted(updates: Any, params: Any) -> Any:
        jax.debug.callback(lambda: calls.append(1))
        return updates

    optimizer = mx.MultiSteps(mx.Chain(mx.Stateless(noted), mx.SGD(0.1)), every_k=2)
    path = next(path for path in optimizer.hyperparameters() if path.endswith("learning_rate"))
    results = sweeps.run(sweeps.grid(optimizer, **{path: [0.1, 0.2]}), linear, **QUIET)
    jax.effects_barrier()
    assert len(calls) == 2  # of four steps
    assert_each_member_is_as_alone(results, linear)


def test_one_seed_adds_no_axis_to_the_program():
    def train(optimizer: Any, key: Any) -> Any:
        return jnp.sin(jax.random.normal(key, (3, 5)) * optimizer.learning_rate)

    members = sweeps.grid(mx.SGD(0.1), learning_rate=[0.1, 0.2])
    for seeds, inside in ((1, (2, 3, 5)), (2, (2, 2, 3, 5))):
        experiment = Experiment(members, train, seeds=seeds, key=None, devices=1, segments=1)
        segment = experiment.structures[0].segment
        mapped, numbers = segment._mapped(_training.Size(2, seeds)), [jnp.ones(2)] * len(segment.axes[1:])
        equations: Any = jax.make_jaxpr(mapped)(segment.consts, *numbers, experiment.keys).eqns
        (shape,) = [e.outvars[0].aval.shape for e in equations if e.primitive.name == "sin"]
        assert shape == inside


def test_decay_clip_momentum_and_schedule_vary_in_one_program():
    schedule = schedules.WarmupCosineDecay(0.0, 1e-2, warmup_steps=1, decay_steps=4)
    optimizer = mx.Chain(
        clip=mx.ClipByGlobalNorm(1.0), decay=mx.AddDecayedWeights(0.1), sgd=mx.SGD(schedule, momentum=0.9)
    )
    values = {
        "weight_decay": [0.0, 0.1],
        "max_norm": [0.1, 1.0],
        "momentum": [0.5, 0.9],
        "sgd.learning_rate.decay_steps": [3, 8],
        "sgd.learning_rate.peak_value": [1e-2, 1e-1],
    }
    TRACED.clear()
    results = sweeps.run(sweeps.grid(optimizer, **values), linear, **QUIET)
    assert TRACED["linear"] == 2
    assert len(np.unique(results.metrics["loss"])) == 32
    assert_each_member_is_as_alone(results, linear)


def test_classes_share_a_table(tmp_path: Path):
    TRACED.clear()
    sweep = sweeps.concat([
        sweeps.grid(mx.AdamW(1e-3), learning_rate=[1e-3, 1e-1]),
        sweeps.grid(mx.Lion(1e-3), learning_rate=[1e-3, 1e-2]),
        [mx.Muon(0.02, adam_learning_rate=0.02)],
        mx.AdamW(1e-2),
    ])  # fmt: skip
    results = sweeps.run(sweep, linear, seeds=2, **QUIET)
    assert TRACED["linear"] == 4  # the first structure twice
    assert_each_member_is_as_alone(results, linear)
    table = results.table("loss")
    assert [row["optimizer"] for row in table] == ["AdamW", "AdamW", "Lion", "Lion", "Muon", "AdamW"]
    np.testing.assert_allclose([row["loss"] for row in table], results.metrics["loss"].mean(1), rtol=1e-6)
    optimizer, row = results.best("loss")
    i = int(results.metrics["loss"].mean(1).argmin())
    assert optimizer is sweep[i]
    assert row["member"] == i
    results.to_csv(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["member"]), int(r["seed"])) for r in rows] == [(i, j) for i in range(6) for j in range(2)]
    np.testing.assert_allclose([float(r["loss"]) for r in rows], results.metrics["loss"].ravel(), rtol=1e-6)
    np.testing.assert_allclose([float(r["curve"]) for r in rows], results.metrics["curve"][..., -1].ravel(), rtol=1e-6)
    assert {r["diverged"] for r in rows} == {"False"}


SGDS = sweeps.grid(mx.SGD(0.1), learning_rate=[0.05, 0.1])
NOISE = [sweeps.grid(mx.NoisySGD(0.1, key=1), learning_rate=[0.05, 0.1]), mx.NoisySGD(0.1, key=2)]
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "one": lambda: mx.AdamW(1e-3),
    "some on the device": lambda: [mx.SGD(jnp.asarray(0.1)), mx.SGD(0.2)],
    "noise": lambda: sweeps.concat(NOISE),
    "of optax": lambda: [mx.from_optax(optax.adam(1e-3)), mx.from_optax(optax.sgd(1e-2))],
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_whatever_is_an_optimizer(make: Any):
    with settings.jax_defaults():  # optax needs them
        results = sweeps.run(make(), linear, seeds=2, **QUIET)
        assert_each_member_is_as_alone(results, linear)


def test_train_may_be_jitted_or_partial():
    expected = sweeps.run(SGDS, linear, **QUIET).metrics["loss"]
    for decorated in (jax.jit(linear), eqx.filter_jit(linear), functools.partial(linear)):
        np.testing.assert_allclose(sweeps.run(SGDS, decorated, **QUIET).metrics["loss"], expected, rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_double_precision():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=[0.05, 0.1])
    results = sweeps.run(sweep, lambda optimizer, key: jnp.float64(1.0) - optimizer.learning_rate, **QUIET)
    assert results.metrics.dtype == np.float64
    np.testing.assert_array_equal(results.metrics[:, 0], [0.95, 0.9])


def test_data_is_neither_a_constant_of_the_program_nor_copied_for_each_member(monkeypatch: pytest.MonkeyPatch):
    data = jnp.ones((256, 256))  # 262 kB
    programs = []
    monkeypatch.setattr(_population, "peak", lambda compiled: programs.append(compiled) or _memory.peak(compiled))

    def train(optimizer: Any, key: Any) -> Any:
        return jnp.sum(data) * optimizer.learning_rate

    many = sweeps.grid(mx.SGD(0.1), learning_rate=np.linspace(0.1, 1.0, 32))
    results = sweeps.run(many, train, memory=1e9, **QUIET)
    np.testing.assert_allclose(results.metrics[:, 0], 65536 * np.linspace(0.1, 1.0, 32), rtol=1e-6)
    (program,) = programs
    assert 262_144 < _memory.peak(program) < 2 * 262_144 + 10_000
    assert len(program.as_text()) < 100_000


def heavy(optimizer: Any, key: Any) -> Any:
    TRACED["heavy"] += 1
    weights, _ = optimizer.step(x := jax.random.normal(key, (1000,)) * optimizer.learning_rate, optimizer.init(x), x)
    return {"weights": weights}  # 4 kB per member


def test_the_chunk_is_found_under_a_small_budget(capsys: pytest.CaptureFixture[str]):
    TRACED.clear()
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=np.linspace(0.1, 1.0, 10))
    expected = sweeps.run(sweep, heavy, **QUIET)
    assert expected.chunk == (10,)
    TRACED.clear()
    results = sweeps.run(sweep, heavy, memory=40_000, devices=1)
    assert TRACED["heavy"] == 2
    (chunk,) = results.chunk
    assert 1 < chunk < 10
    assert f"SGD: {chunk} of 10 members at a time" in capsys.readouterr().err
    np.testing.assert_array_equal(results.metrics["weights"], expected.metrics["weights"])
    with pytest.raises(MemoryError, match=rf"`chunk=10` needs .* and 40 kB are free. Try `chunk={chunk}`"):
        sweeps.run(sweep, heavy, memory=40_000, chunk=10, **QUIET)
    assert sweeps.run(sweep, heavy, memory=40_000, chunk=chunk, **QUIET).chunk == (chunk,)
    with pytest.raises(MemoryError, match=r"Training one member needs .* smaller model or batch, fewer seeds"):
        sweeps.run(sweep, heavy, memory=1000, **QUIET)
    with pytest.raises(MemoryError, match="Training 8 members, one on each device, needs"):
        sweeps.run(sweep, heavy, memory=1000, progress=False)
    assert capsys.readouterr().err == ""


def rounded_to(devices: int) -> Callable[[int], int]:
    return lambda n: -(-n // devices) * devices


@pytest.mark.parametrize("members", [1, 7, 100])
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("each", [1.0, 7.0, 30.0])
def test_the_found_chunk_is_nearly_the_largest_that_fits(members: int, devices: int, each: float):
    def needed(width: int) -> int:
        return int(100 + each * width / devices)

    width = _memory.fitting(needed, members, rounded_to(devices), None, 300)
    assert width % devices == 0
    assert needed(width) <= 300
    most = max(w for w in range(devices, 1000, devices) if needed(w) <= 300)
    assert -(-members // width) <= -(-members // most) + 1
    assert width <= rounded_to(devices)(members)
    assert _memory.fitting(needed, members, rounded_to(devices), None, float("inf")) == rounded_to(devices)(members)


@pytest.mark.parametrize(
    "members, chunk, devices, width", [(36, 24, 1, 18), (36, 24, 8, 24), (7, 3, 1, 3), (9, 24, 1, 9)]
)
def test_chunks_are_of_equal_size(members: int, chunk: int, devices: int, width: int):
    """36 members in chunks of 24 would train 12 copies of the last one."""

    assert _memory.fitting(lambda n: n, members, rounded_to(devices), chunk, 300) == width


def test_a_device_without_memory_is_answered_with_a_smaller_chunk(monkeypatch: pytest.MonkeyPatch):
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=np.linspace(0.1, 1.0, 10))

    def full(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 10 bytes.")

    monkeypatch.setattr(_training.LaneProgram, "__call__", full)
    with pytest.raises(MemoryError, match=r"while 10 members were trained at a time. Try `chunk=5`"):
        sweeps.run(sweep, linear, **QUIET)
    with pytest.raises(MemoryError, match="Try `chunk=8`"):
        sweeps.run(sweep, linear, progress=False)
    assert "Try `chunk=16`" in _memory.exhausted(24, rounded_to(8))
    with pytest.raises(MemoryError, match="Use a smaller model or batch, fewer seeds"):
        sweeps.run(sweep[:1], linear, **QUIET)

    def broken(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: no")

    monkeypatch.setattr(_training.LaneProgram, "__call__", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        sweeps.run(sweep, linear, **QUIET)


def start(optimizer: Any, key: Any) -> Any:
    return {"w": jax.random.normal(key, (2,)), "n": jnp.zeros((), int), "act": jnp.tanh, "name": "model"}


def advance(optimizer: Any, carry: Any) -> Any:
    w = carry["w"] * (1 - optimizer.learning_rate)
    carry = carry | {"w": w, "n": carry["n"] + 1}
    return carry, {"curve": jnp.stack([carry["n"] * 10, carry["n"] * 10 + 1]), "w": carry["act"](w)}


def test_segments_follow_the_axes_of_members_and_seeds():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=[0.1, 0.2, 0.5])
    results = sweeps.run(sweep, sweeps.Trainable(start, advance), seeds=2, segments=3, chunk=2, **QUIET)
    assert results.metrics["curve"].shape == (3, 2, 3, 2)
    assert results.curve("curve")[2, 1].tolist() == [10, 11, 20, 21, 30, 31]
    assert results.final("curve").tolist() == [[31, 31]] * 3
    begin = np.asarray(jax.vmap(lambda key: jax.random.normal(key, (2,)))(results.keys))
    rates, times = np.array([0.1, 0.2, 0.5]).reshape(3, 1, 1, 1), np.arange(1, 4).reshape(1, 1, 3, 1)
    np.testing.assert_allclose(results.metrics["w"], np.tanh(begin[None, :, None] * (1 - rates) ** times), rtol=1e-5)
    assert results.segments.tolist() == [3, 3, 3]


def wrong_carry(**changes: Any) -> sweeps.Trainable:
    def changed(optimizer: Any, carry: Any) -> Any:
        carry, metrics = advance(optimizer, carry)
        carry = {name: x(carry[name]) if callable(x := changes.get(name)) else carry[name] for name in carry}
        return {name: x for name, x in carry.items() if x is not None}, metrics

    return sweeps.Trainable(start, changed)


def returned(*out: Any) -> sweeps.Trainable:
    return sweeps.Trainable(start, lambda optimizer, carry: out if len(out) != 1 else out[0])


def of_class(optimizer: Any, key: Any) -> Any:
    return {"loss": jnp.zeros(2 if isinstance(optimizer, mx.Lion) else 3)}


def named_by_class(optimizer: Any, key: Any) -> Any:
    return {type(optimizer).__name__: 1.0}


def reads(function: Callable[[Any], Any]) -> Any:
    return lambda optimizer, key: function(optimizer.learning_rate)


def batches(n: int = 9) -> Any:
    return iter(np.arange(2.0 * n, dtype=np.float32).reshape(n, 2))


def taking(loader: Any) -> sweeps.Trainable:
    """A training on the next batch of a loader."""
    return sweeps.Trainable(lambda o, key: jnp.zeros(2), lambda o, x: (x + o.learning_rate * next(loader), x[0]))


def in_a_scan(loader: Any) -> Any:
    def train(optimizer: Any, key: Any) -> Any:
        return jax.lax.scan(lambda x, _: (x + next(loader), None), jnp.zeros(2), length=3)[0]

    return train


loader, RANDOM = batches(), np.random.default_rng(0)
TWO_CLASSES = [mx.SGD(0.1), mx.Lion(0.1)]
TAKES = r"is no function of its arguments: .*`next\(loader\)`.*`jax.pure_callback`"
TRAINABLE: Any = sweeps.Trainable  # for functions that a type checker refuses
READS = r"reads a traced value as a Python number.*`jnp\.where`"
WRONG: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (SGDS, reads(float), {}, TypeError, READS),
    (SGDS, reads(int), {}, TypeError, READS),
    (SGDS, reads(bool), {}, TypeError, READS),
    (SGDS, reads(np.sin), {}, TypeError, READS),
    (SGDS, reads(lambda x: 1.0 if x > 0 else 0.0), {}, TypeError, READS),
    (SGDS, reads(lambda x: list(range(x.astype(int)))), {}, TypeError, READS),
    (SGDS, reads(lambda x: jnp.zeros(x.astype(int))), {}, TypeError, READS),
    (SGDS, reads(lambda x: float(f"{x:.3f}")), {}, TypeError, READS),
    (SGDS, reads(lambda x: {x: 1.0}), {}, TypeError, READS),
    (SGDS, lambda optimizer, key: operator.matmul(jnp.ones(2), "a"), {}, TypeError, "(?s)^(?!.*Python number)"),
    (SGDS, lambda optimizer: 1.0, {}, TypeError, r"`train\(optimizer, key\)`, and this one is `train\(optimizer\)`"),
    (SGDS, lambda o, key, data: 1.0, {}, TypeError, "from a closure or `functools.partial`"),
    (SGDS, TRAINABLE(lambda key: key, advance), {}, TypeError, r"`start\(optimizer, key\)`"),
    (SGDS, TRAINABLE(start, lambda carry: carry), {}, TypeError, r"`advance\(optimizer, carry\)`"),
    (SGDS, 3, {}, TypeError, r"`sweeps\.Trainable\(start, advance\)`; got 3"),
    (linear, SGDS[0], {}, TypeError, "needs the training as a function"),
    (SGDS, linear, {"segments": 3}, ValueError, r"`sweeps\.Trainable\(start, advance\)` in place of a function"),
    (SGDS, lambda optimizer, key: None, {}, TypeError, 'has no arrays.*return {"loss": loss}'),
    (SGDS, lambda optimizer, key: {"a": {"b": "text"}}, {}, TypeError, r"`a\.b: str`"),
    (SGDS, lambda optimizer, key: eqx.nn.MLP(2, 2, 2, 1, key=key), {}, TypeError, "keep a model or a function out"),
    (SGDS, lambda optimizer, key: key, {}, TypeError, "`the result: a random key`"),
    (SGDS, lambda optimizer, key: jnp.zeros((0, 2)), {}, TypeError, r"an empty array of shape \(0, 2\)"),
    (TWO_CLASSES, of_class, {}, ValueError, r"For Lion, `loss` is float32\[2\]; for SGD, it is float32\[3\]"),
    (TWO_CLASSES, named_by_class, {}, ValueError, r"For Lion, `SGD` is absent"),
    (SGDS, linear, {"seeds": 0}, ValueError, r"`sweeps\.run\(seeds=\.\.\.\)` must be a positive integer, got 0"),
    (SGDS, linear, {"chunk": 0}, ValueError, "chunk.*positive integer, got 0"),
    (SGDS, returned(1), {"segments": 0}, ValueError, "segments.*positive integer, got 0"),
    (SGDS, linear, {"key": 0}, ValueError, r"`jax\.random\.key\(0\)`, got 0"),
    (SGDS, linear, {"key": jax.random.split(jax.random.key(0), 2)}, ValueError, r"an array of shape \(2,\)"),
    (SGDS, linear, {"memory": "1GB"}, ValueError, "such as `memory=8e9`"),
    (SGDS, linear, {"memory": 0}, ValueError, "such as `memory=8e9`"),
    (SGDS, wrong_carry(w=lambda x: x.astype(jnp.bfloat16)), {}, TypeError, r"`w` is float32.* bfloat16\[2\] after"),
    (SGDS, wrong_carry(w=lambda x: x[:1]), {}, TypeError, r"`w` is float32\[2\] before .* float32\[1\] after"),
    (SGDS, wrong_carry(n=lambda x: 3), {}, TypeError, "`n` is int32.* absent after it. Keep a step count as an array"),
    (SGDS, wrong_carry(name=lambda x: "other"), {}, TypeError, "the same non-arrays. `name` changed"),
    (SGDS, wrong_carry(name=lambda x: None), {}, TypeError, "the same non-arrays"),
    (SGDS, taking(batches()), {"segments": 2}, ValueError, rf"`advance` {TAKES}"),
    (SGDS, taking(batches(1)), {"segments": 2}, ValueError, "`advance` is no .* it gave StopIteration"),
    (SGDS, TRAINABLE(lambda o, key: next(loader), advance), {}, ValueError, rf"`start` {TAKES}"),
    (SGDS, in_a_scan(batches()), {}, ValueError, rf"`train` {TAKES}"),
    (SGDS, jax.jit(in_a_scan(batches())), {}, ValueError, r"gave another array float32\[2\]"),
    (SGDS, eqx.filter_jit(in_a_scan(batches())), {}, ValueError, TAKES),
    (SGDS, lambda o, key: RANDOM.normal() * o.learning_rate, {}, ValueError, "gave other operations, or other numbers"),
    (SGDS, lambda o, key: {"a": {"b": 1.0}, "a.b": 2.0}, {}, ValueError, "several metrics with the name `a.b`"),
    (SGDS, returned(1, 2, 3), {}, TypeError, r"a pair, `\(carry, metrics\)`, and it returned a tuple of 3"),
    (SGDS, returned({"loss": 1.0}), {}, TypeError, r"a pair, `\(carry, metrics\)`, and it returned dict"),
    (SGDS, TRAINABLE(start, lambda o, carry: (carry, None)), {}, TypeError, "`advance` must return its metrics"),
]


@pytest.mark.parametrize("sweep, train, options, error, says", WRONG, ids=range(len(WRONG)))
def test_wrong_calls_are_answered_with_what_to_write(
    sweep: Any, train: Any, options: dict[str, Any], error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=says):
        sweeps.run(sweep, train, **QUIET | options)


def test_a_trainable_consists_of_functions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"`Trainable\(advance=...\)` must be a function, got 2"):
        TRAINABLE(start, 2)


def test_disable_jit_is_answered_with_a_call_for_one_member():
    with jax.disable_jit(), pytest.raises(RuntimeError, match=r"`train\(sweep\[0\], key\)`"):
        sweeps.run(SGDS, linear, **QUIET)


def test_legacy_keys_and_the_default_key():
    typed = sweeps.run(SGDS, linear, seeds=2, **QUIET)
    raw = sweeps.run(SGDS, linear, seeds=2, key=jax.random.PRNGKey(0), **QUIET)
    np.testing.assert_array_equal(raw.metrics["loss"], typed.metrics["loss"])
    assert len(np.unique(typed.metrics["loss"])) == 4
    other = sweeps.run(SGDS, linear, seeds=2, key=jax.random.key(1), **QUIET)
    assert not np.intersect1d(other.metrics["loss"], typed.metrics["loss"]).size


def test_a_segment_has_a_number_by_which_data_are_read_once_for_all_members(tmp_path: Path):
    """Also in a sweep that goes on, where it goes on."""
    read, table = list[int](), np.arange(8, dtype=np.float32)

    def batch(number: Any) -> Any:
        read.append(int(number))
        return table[number]

    def advance(optimizer: Any, carry: Any, segment: Any) -> Any:
        assert jnp.ndim(segment) == 0
        carry = carry + optimizer.learning_rate * jax.pure_callback(
            batch, jax.ShapeDtypeStruct((), jnp.float32), segment
        )
        return carry, {"sum": carry, "segment": segment}

    training = sweeps.Trainable(lambda optimizer, key: jnp.zeros(()), advance)
    folder: Any = {"folder": tmp_path, "seeds": 3} | QUIET
    sweeps.run(SGDS, training, segments=2, **folder)
    found = sweeps.run(SGDS, training, segments=4, **folder)
    assert read == [0, 1, 2, 3]
    assert (found["segment"] == np.arange(4)).all()
    rates = np.array([0.05, 0.1], np.float32)[:, None, None]
    np.testing.assert_allclose(found["sum"], np.broadcast_to(rates * np.cumsum(table[:4]), (2, 3, 4)), rtol=1e-6)
    spread = sweeps.run(SGDS, training, segments=4, seeds=3, progress=False)  # over all devices
    np.testing.assert_allclose(spread["sum"], found["sum"], rtol=1e-6)
    found = sweeps.halving(SGDS, training, "sum", rungs=[1, 3], factor=2, **QUIET)
    assert found["segment"][0].tolist() == [[0, 1, 2]]
    with_default = sweeps.Trainable(training.start, lambda optimizer, carry, factor=2.0: (carry + factor, carry))
    assert sweeps.run(SGDS, with_default, segments=2, **QUIET).metrics.tolist() == [[[0.0, 2.0]]] * 2

"""`data=`: which segment gets what, how often it is read, and where a sweep goes on that was killed."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optuna
import pytest

import modulax as mx
from modulax import sweeps

from .sweep_probes import copied_before_writes

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
RATES = sweeps.grid(mx.SGD(0.1, momentum=0.5), learning_rate=[0.1, 0.2, 0.4])


def start(optimizer: Any, key: Any) -> Any:
    params = jax.random.normal(key, (2,))
    return params, optimizer.init(params)


def advance(optimizer: Any, carry: Any, batch: Any) -> Any:
    params, state = carry
    params, state = optimizer.step(params - batch["x"].mean(0), state, params)
    dtypes = {name: str(x.dtype) for name, x in batch.items()}
    assert dtypes == {"x": str(jnp.result_type(float)), "label": "uint8", "half": "bfloat16"}
    metrics = {"loss": jnp.sum(params**2), "label": batch["label"], "half": batch["half"]}
    return (params, state), metrics


TRAINING = sweeps.Trainable(start, advance)


def item(segment: int) -> dict[str, Any]:
    x = np.random.default_rng(segment).normal(size=(3, 2))
    return {"x": x, "label": np.uint8(segment), "half": jnp.bfloat16(segment / 4)}


def generator(segment: int) -> Iterator[dict[str, Any]]:
    while True:
        yield item(segment)
        segment += 1


class Plain:
    """An iterator without a cursor, whose items are one buffer, which each of them overwrites."""

    def __init__(self) -> None:
        self.read = list[int]()
        self.buffer = {name: np.array(x) for name, x in item(0).items()}
        memory = np.zeros(128, np.uint8)
        at = -memory.ctypes.data % 64  # such an array becomes one of JAX without a copy
        self.buffer["label"] = memory[at : at + 1].reshape(())
        self.segment = 0

    def __iter__(self) -> "Plain":
        return self

    def __next__(self) -> dict[str, Any]:
        self.read.append(self.segment)
        for name, x in item(self.segment).items():
            self.buffer[name][...] = x
        self.segment += 1
        return self.buffer


class OfGrain(Plain):
    """An iterator with a cursor, which it changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"segment": 0}

    def __next__(self) -> dict[str, Any]:
        self.segment = self.state["segment"]
        self.state["segment"] += 1
        return super().__next__()

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class OfTorch:
    """A loader with a cursor, which its next iterator takes."""

    def __init__(self) -> None:
        self.segment, self.given = 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.segment = self.given
        while self.segment < 9:
            self.segment += 1
            yield item(self.segment - 1)

    def state_dict(self) -> Any:
        return {"segment": self.segment}

    def load_state_dict(self, state: Any) -> None:
        self.given = state["segment"]


SOURCES: dict[str, Callable[[], Any]] = {
    "function": lambda: item,
    "generator": lambda: generator,
    "grain": OfGrain,
    "torch": OfTorch,
}


def run(data: Any, folder: Path | None = None, sweep: Any = RATES, **options: Any) -> sweeps.Results:
    given: dict[str, Any] = {"seeds": 2, "segments": 3, "chunk": 2}
    return sweeps.run(sweep, TRAINING, data=data, folder=folder, **given | QUIET | options)


@pytest.fixture(scope="module")
def whole() -> sweeps.Results:
    return run(item)


def assert_same(a: sweeps.Results, b: sweeps.Results) -> None:
    for x, y in zip(jax.tree.leaves(a.metrics), jax.tree.leaves(b.metrics), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "data-of-a-sweep" in thread.name]


def test_every_segment_is_read_once_for_all_members_and_seeds(whole: sweeps.Results):
    """Whatever reads it; in chunks, on one device and on all."""
    assert (whole["label"] == np.arange(3, dtype=np.uint8)).all()
    assert (whole["half"] == np.arange(3) / 4).all()
    params, momenta = np.stack([jax.random.normal(key, (2,)) for key in whole.keys])[None], np.zeros((3, 2, 2))
    for segment in range(3):
        momenta = params - item(segment)["x"].mean(0) + 0.5 * momenta
        params = params - np.array([0.1, 0.2, 0.4])[:, None, None] * momenta
        np.testing.assert_allclose(whole["loss"][:, :, segment], np.sum(params**2, -1), rtol=1e-5)
    source = Plain()
    assert_same(run(source), whole)
    assert source.read == [0, 1, 2]
    for of_kind in SOURCES.values():
        assert_same(run(of_kind()), whole)
    np.testing.assert_allclose(run(item, devices=None)["loss"], whole["loss"], rtol=1e-6)
    assert not readers()


@pytest.mark.usefixtures("x64")
def test_data_are_in_double_precision_where_the_training_is():
    results = run(item, sweep=RATES[:1], seeds=1)
    assert results["loss"].dtype == np.float64


def test_one_segment_is_read_ahead_while_another_is_trained():
    begun = [threading.Event() for _ in range(6)]

    def source(segment: int) -> Any:
        begun[segment].set()
        return item(segment)

    def hook(rows: list[sweeps.Row]) -> None:
        segment = rows[0].segment
        assert segment == 5 or begun[segment + 1].wait(60)  # only a thread can do that
        assert not any(event.is_set() for event in begun[segment + 2 :])

    run(source, segments=6, on_segment=hook)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_thread_ends_with_the_sweep(error: type[BaseException]):
    def hook(rows: Any) -> None:
        assert readers()
        raise error

    with pytest.raises(error):
        run(item, on_segment=hook)
    assert not readers()


# --- Folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOURCES)
def test_killed_before_any_of_its_writes_it_ends_as_an_uninterrupted_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: sweeps.Results
):
    with copied_before_writes(monkeypatch, tmp_path / "sweep") as left:
        run(SOURCES[kind](), tmp_path / "sweep")
    assert len(left) >= 2 + 6 * 2 + 1
    for killed in left[1 :: 3 if kind == "grain" else 9]:
        assert_same(run(SOURCES[kind](), killed), whole)


def test_members_and_segments_that_are_added_get_the_data_of_their_segments(tmp_path: Path, whole: sweeps.Results):
    """By the cursors of the folder, also of a merged one, wherever the iterator is."""
    first, other = tmp_path / "first", tmp_path / "other"
    run(OfGrain(), first, sweep=RATES[:1], segments=2)
    run(OfGrain(), other, sweep=RATES[1:2], seeds=1, segments=3)
    sweeps.merge(tmp_path / "all", first, other)
    assert sorted(path.name for path in (tmp_path / "all" / "data").iterdir()) == [f"000{i}" for i in range(4)]
    used = OfGrain()
    next(used)
    for folder in (first, tmp_path / "all"):
        found = run(used, folder)
        np.testing.assert_allclose(found["loss"], whole["loss"], rtol=1e-6)
        np.testing.assert_array_equal(found["label"], whole["label"])
    (first / "data" / "0003").unlink()
    with pytest.raises(ValueError, match="has no cursor of `data` before segment 3: its runs were trained with a"):
        run(OfGrain(), first, segments=4)
    (first / "data" / "0003").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"`data/0003` can't be read"):
        run(OfGrain(), first, segments=4)
    run(item, first, segments=4)  # a function needs no cursor


# --- Searches ------------------------------------------------------------------------------------


def halving(data: Any) -> Any:
    return sweeps.halving(RATES, TRAINING, "loss", rungs=[1, 3], chunk=2, data=data, **QUIET)


def pbt(data: Any) -> Any:
    explore = {"learning_rate": 1.5}
    return sweeps.pbt(RATES, TRAINING, "loss", segments=3, explore=explore, exploit=0.4, chunk=2, data=data, **QUIET)


def of_optuna(data: Any) -> Any:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    spaces: Any = {"learning_rate": sweeps.LogUniform(1e-3, 0.1)}
    options: Any = {"trials": 4, "batch": 2, "metric": "loss", "segments": 3, **spaces, **QUIET}
    return sweeps.optuna(study, mx.SGD(0.1), TRAINING, data=data, **options)


def compare(data: Any) -> Any:
    space = {"SGD": sweeps.SearchSpace(mx.SGD(0.1), learning_rate=sweeps.LogUniform(1e-3, 0.1))}
    options: Any = {"budget": 2, "seeds": 2, "segments": 3, **QUIET}
    comparison = sweeps.compare(space, TRAINING, "loss", data=data, **options)
    assert (comparison.search["label"] == np.arange(3)).all()
    return comparison.results


@pytest.mark.parametrize("search", [halving, pbt, of_optuna, compare])
def test_searches_get_the_data_of_each_segment(search: Callable[[Any], Any]):
    results = search(OfGrain())
    for member, end in enumerate(results.segments):
        assert (results["label"][member, :, :end] == np.arange(end)).all()
    assert results.segments.max() == 3
    if search in (halving, pbt):
        source = Plain()
        assert_same(search(source), results)
        assert source.read == [0, 1, 2]
    else:
        with pytest.raises(ValueError, match=r"reads the data again for .*`data` is a Plain without a cursor"):
            search(Plain())


# --- What goes wrong -----------------------------------------------------------------------------


def broken(segment: int) -> Any:
    return {**item(segment), "x": np.load("/no/such/file")} if segment == 1 else item(segment)


def smaller(segment: int) -> Any:
    return {**item(segment), "x": item(segment)["x"][: 3 - segment]}


WRONG: list[tuple[Any, type[Exception], str]] = [
    (broken, OSError, "no such file.*\nThis is an error of `data`, in segment 1."),
    (smaller, ValueError, r"`x` was float32\[3, 2\] and is float32\[2, 2\]. Drop .*\n.* in segment 1\."),
    (lambda segment: {**item(0), "x": (1.0, 1.0)} if segment else item(0), ValueError, "`x` was .* and is absent"),
    (iter([item(0), item(1)]), ValueError, "no item for segment 2. Train fewer segments, or repeat"),
    (lambda segment: None, TypeError, "must give arrays, in any pytree, and it gave None"),
    (lambda segment: {"name": "a"}, TypeError, "`name` is str of dtype <U1. Leave it out, or encode it"),
    (lambda: item(0), TypeError, r"`data` is called as `data\(segment\)`, and this one is `data\(\)`"),
    ([item(0)], TypeError, r"such as `lambda segment: x\[segment\]`, or an iterator .*; got list\. If the data fit"),
    (np.zeros(3), TypeError, "got ndarray"),
    (3, TypeError, "got int"),
]


@pytest.mark.parametrize("data, error, says", WRONG, ids=range(len(WRONG)))
def test_wrong_data_are_answered_with_what_to_write(data: Any, error: type[Exception], says: str):
    with pytest.raises(error) as raised:
        run(data)
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert not readers()
    assert re.search(says, text, re.IGNORECASE | re.DOTALL), text


def test_trainings_that_take_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for training, says in (
        (lambda optimizer, key: 1.0, r"`sweeps.run\(data=...\)` needs a training that can be cut into segments"),
        (sweeps.Trainable(start, lambda o, carry: (carry, 1.0)), r"called as `advance\(optimizer, carry, batch\)`"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            sweeps.run(RATES, training, data=item, **QUIET)
    with pytest.raises(ValueError, match=r"may be resumed, and `data` is a Plain .*Give a function, `data\(segment\)`"):
        run(Plain(), tmp_path / "sweep")

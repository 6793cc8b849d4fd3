"""The training examples: real models, optax's loss curves, and runs that are interrupted or killed and go on."""

import importlib
import inspect
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state

import modulax as mx
import modulax.linen
import modulax.nnx

from .settings import jax_defaults

EXAMPLES = Path(__file__).parents[1] / "examples"


class Training(NamedTuple):
    """How an example is told to use an optimizer of ours, and the same of optax."""

    ours: Any
    theirs: Any


def is_no_norm(params: Any) -> Any:
    return jtu.tree_map_with_path(lambda path, _: not any("norm" in str(key) for key in path), params)


def in_nnx(ours: Any, theirs: Any) -> Training:
    return Training(
        lambda model: modulax.nnx.Optimizer(model, ours),
        lambda model: nnx.Optimizer(model, theirs, wrt=nnx.Param),
    )


def linen(cls: Any, tx: Any) -> Any:
    return lambda params: cls.create(apply_fn=lambda params, x: x, params=params, tx=tx)


# Decays that float32 can hold. Of 0.999 it cannot, and then `1 - b2` differs: optax rounds after the subtraction, which
# makes its second moment too large by 1e-5, and we before it.
B1, B2 = 0.875, 1 - 2**-10

STEPS = {"equinox_rnn": 100, "nnx_transformer": 24}  # the one learns slowly, the other runs slowly
KILLED = ("nnx_cnn", "equinox_rnn")  # these are interrupted by a signal, in processes of their own
SLOW = ("nnx_transformer",)  # it saves and goes on as `nnx_cnn` does
TRAININGS = {
    "nnx_transformer": in_nnx(mx.AdamW(3e-3, B1, B2), optax.adamw(3e-3, B1, B2)),
    "nnx_cnn": in_nnx(
        mx.AdamW(1e-3, B1, B2, weight_decay=1e-2, mask=mx.by_path({"norm*": False, "*": True})),
        optax.adamw(1e-3, B1, B2, weight_decay=1e-2, mask=is_no_norm),
    ),
    "linen_mlp": Training(
        linen(modulax.linen.TrainState, mx.SGD(mx.schedules.CosineDecay(0.1, 100), momentum=0.9)),
        linen(train_state.TrainState, optax.sgd(optax.cosine_decay_schedule(0.1, 100), momentum=0.9)),
    ),
    "equinox_cnn": Training(
        mx.AdamW(1e-3, B1, B2, weight_decay=1e-2, mask=mx.by_path({"norm*": False, "*": True})),
        optax.adamw(1e-3, B1, B2, weight_decay=1e-2, mask=is_no_norm),
    ),
    "equinox_rnn": Training(
        mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Adam(3e-3, B1, B2)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3, B1, B2)),
    ),
}


@pytest.fixture(autouse=True)
def _defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with jax_defaults():
        yield


def bits(arrays: Any) -> list[bytes]:
    """Every bit of a tree of arrays."""
    leaves = jtu.tree_leaves(arrays)
    are_keys = [jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    return [
        np.asarray(jax.random.key_data(x) if is_key else x).tobytes()
        for x, is_key in zip(leaves, are_keys, strict=True)
    ]


@pytest.mark.parametrize("name", TRAININGS)
def test_the_loss_curve_is_that_of_optax_also_after_an_interruption(name: str, tmp_path: Path):
    """A run that is interrupted at a random step goes on bit for bit."""
    example, steps = importlib.import_module(name), STEPS.get(name, 32)
    arrays, ours = example.train(tmp_path / "ours", steps, TRAININGS[name].ours)
    _, theirs = example.train(tmp_path / "theirs", steps, TRAININGS[name].theirs)
    assert len(ours) == steps
    assert ours[-1] < 0.8 * ours[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    if name in (*KILLED, *SLOW):
        return

    last = random.Random(name).randrange(15, steps - 1)

    def interrupt(step: int, loss: float) -> None:
        if step == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        example.train(tmp_path / "interrupted", steps, TRAININGS[name].ours, on_step=interrupt)
    resumed, losses = example.train(tmp_path / "interrupted", steps, TRAININGS[name].ours)
    assert 0 < len(losses) < steps  # it did go on, and not from the beginning
    assert losses == ours[-len(losses) :]
    assert bits(resumed) == bits(arrays)


_RUN = """
import hashlib, importlib, json, os, signal, sys, time, warnings
from pathlib import Path
from typing import Any
import equinox, flax.nnx, jax, orbax.checkpoint, sklearn.datasets
import jax.tree_util as jtu
import numpy as np
import modulax.nnx
from jax._src import xla_bridge
from modulax import checkpoint
sys.path[:0] = [{examples!r}]

{bits}

def run(name, folders, die_at):
    def on_step(step, loss):
        if die_at is not None:
            time.sleep(0.03)  # a checkpoint in the background needs time to be written
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    example = importlib.import_module(name)
    for folder in folders:
        arrays, losses = example.train(Path(folder), 25, on_step=on_step)
        print(len(losses), hashlib.sha256(b"".join(bits(arrays))).hexdigest(), flush=True)

assert not xla_bridge.backends_are_initialized()
warnings.simplefilter("ignore")  # JAX warns of forks; it has started no thread yet
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(**json.loads(line))
        sys.exit()
    print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def run(tmp_path: Path, trainings: list[dict[str, Any]]) -> list[list[str]]:
    """Train one after the other, each in a process of its own, and return what each printed, and how it ended.

    The processes are forked from one that has imported what they need, which takes longer than training.
    """
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    source = _RUN.format(examples=str(EXAMPLES), bits=inspect.getsource(bits))
    lines = "".join(json.dumps(training) + "\n" for training in trainings)
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    *printed, rest = re.split(r"^exit (-?\d+)\n", done.stdout, flags=re.MULTILINE)
    assert not rest
    outputs = list(zip(printed[::2], printed[1::2], strict=True))
    assert len(outputs) == len(trainings), done.stderr
    return [[*text.split(), status] for text, status in outputs]


def test_runs_that_are_killed_go_on_bit_for_bit(tmp_path: Path):
    """A real process is killed, another one goes on, with checkpoints in the background and with ours."""
    trainings = []
    for name in KILLED:
        killed, whole = str(tmp_path / name / "killed"), str(tmp_path / name / "whole")
        trainings += [
            {"name": name, "folders": [killed], "die_at": random.Random(name).randrange(15, 23)},
            {"name": name, "folders": [killed, whole], "die_at": None},
        ]
    outputs = run(tmp_path, trainings)
    for killed, resumed in zip(outputs[::2], outputs[1::2], strict=True):
        assert killed == [str(-signal.SIGKILL)]
        count, after, count_of_whole, whole, status = resumed
        assert status == "0"
        assert 0 < int(count) < 25  # it did go on, and not from the beginning
        assert (count_of_whole, whole) == ("25", after)

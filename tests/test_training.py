"""The training examples: real models, optax's loss curves, and runs that are interrupted and go on."""

import importlib
import random
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
SLOW = "nnx_transformer"  # it saves and goes on as `nnx_cnn` does
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
    if name == SLOW:
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

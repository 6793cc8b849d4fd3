"""Calls that users get wrong: each is refused where it is written, and the error message says what to write instead.

A row of `wrong_calls.tsv` is a call, its error, a part of the message, and what the message says to write, which is run
too.
"""

import dataclasses
import functools
import operator
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.training.early_stopping  # noqa: F401 (in the table)
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax  # noqa: F401 (in the table)
import pytest
from flax import linen, nnx  # noqa: F401 (in the table)

import modulax as mx
import modulax.checkpoint
import modulax.compat
import modulax.linen
import modulax.nnx
import modulax.sweeps
import modulax.testing
from modulax import schedules
from modulax._catalog import vocabulary
from modulax._catalog.optax_names import home, known_elsewhere


class Learned(mx.AbstractStatelessTransform):
    """A transform with a network, or with its arrays."""

    net: Any
    static: Any = eqx.field(static=True, default=None)

    def apply(self, updates, params, **extra):
        del params, extra
        net = eqx.combine(self.net, self.static)
        return jax.tree.map(lambda u: jax.vmap(net)(u.reshape(-1, 1)).reshape(u.shape), updates)


ERRORS: dict[str, type[Exception]] = {
    cls.__name__: cls for cls in (TypeError, AttributeError, KeyError, ValueError, dataclasses.FrozenInstanceError)
}
ROWS = Path(__file__).with_name("wrong_calls.tsv").read_text(encoding="utf-8").splitlines()[1:]
TABLE = [tuple(row.split("\t")) for row in ROWS]
NAMES = {name: getattr(mx, name) for name in operator.attrgetter("__all__")(mx)}


@functools.cache
def _names() -> dict[str, Any]:
    params = {"dense": {"bias": jnp.ones(2), "kernel": jnp.ones((2, 2))}}
    opt = mx.AdamW(1e-3)
    nnx_model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    return globals() | {
        "params": params,
        "grads": params,
        "opt": opt,
        "state": opt.init(params),
        "chain": mx.Chain(clip=mx.Clip(1.0), adamw=opt),
        "plateau": mx.ReduceOnPlateau(),
        "schedule": schedules.CosineDecay(1e-3, 10),
        "mlp": eqx.nn.MLP(1, 1, 2, 1, key=jax.random.key(0)),
        "model": eqx.nn.Linear(2, 2, key=jax.random.key(0)),
        "nnx_model": nnx_model,
        "nnx_opt": modulax.nnx.Optimizer(nnx_model, opt, wrt=nnx.Param),
        "nnx_plateau": modulax.nnx.Optimizer(nnx_model, mx.Chain(opt, mx.ReduceOnPlateau())),
        "nnx_chain": modulax.nnx.Optimizer(nnx_model, mx.Chain(clip=mx.Clip(1.0), adamw=opt), wrt=nnx.Param),
        "blocks": {"blocks": [{"w": jnp.ones(2)}, {"w": jnp.ones(2)}]},
    }


@pytest.fixture(autouse=True)
def _as_users_call(monkeypatch):
    """Without the checks of annotations, which only run in tests and would refuse some of the calls first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("call, error, says, instead", TABLE, ids=[row[0] for row in TABLE])
def test_is_refused_with_what_to_write(call: str, error: str, says: str, instead: str):
    with pytest.raises(ERRORS[error]) as caught:
        exec(call, dict(_names()))
    message = caught.value.args[0] if error == "KeyError" else str(caught.value)
    assert says in message
    exec(instead, dict(_names()))


def test_every_remedy_for_a_word_of_another_library_is_in_the_table():
    """Each sentence of the vocabulary is the answer to a call of the table, where its remedy is run."""
    says = [row[2] for row in TABLE]
    remedies = [remedy for words in vocabulary.ATTRIBUTES.values() for remedy in words]
    assert [x for x in remedies if not any(part in x for part in says)] == []


def test_what_is_written_for_a_name_of_another_library_runs():
    names = NAMES | {"linen": modulax.linen, "nnx": modulax.nnx}
    names |= {"checkpoint": modulax.checkpoint, "sweeps": modulax.sweeps, "jax": jax, "jnp": jnp}
    for written, words in vocabulary.ELSEWHERE.items():
        assert eval(written, names) is not None
        for word in words.split():
            assert (known_elsewhere(word) or "").startswith(f"Write `modulax.{written.partition(' # ')[0]}`.")


def test_hyperball_keeps_the_norms():
    (written,) = (x for x, words in vocabulary.ELSEWHERE.items() if "hyperball" in words.split())
    ball = eval(written, vars(mx) | NAMES | {"jax": jax, "jnp": jnp})
    params = {"w": jnp.asarray([3.0, 4.0])}
    moved, _ = ball.step({"w": jnp.asarray([1.0, -1.0])}, ball.init(params), params)
    np.testing.assert_allclose(jnp.linalg.norm(moved["w"]), 5.0, rtol=1e-6)
    assert abs(moved["w"] - params["w"]).max() > 0.01


@pytest.mark.parametrize(
    "arguments",
    [
        {"lr": 1e-3, "betas": (0.9, 0.99), "wd": 0.1},
        {"lr": 1e-3, "momentum": 0.9, "adamw_lr": 1e-3, "max_grad_norm": 1.0},
        {"lr": 1e-3, "epsilon": 1e-8, "precond_freq": 5, "amsgrad": True, "fused": True},
    ],
    ids=["torch", "muon", "others"],
)
def test_a_proposed_call_runs(arguments: dict[str, Any]):
    """For every optimizer: aliases of all arguments are translated at once, or none is."""
    written = 0
    for name in mx.available():
        with pytest.raises(TypeError) as caught:
            mx.get(name)(**arguments)
        for call in re.findall(r"[Ww]rite `([^`]*)`", str(caught.value)):
            assert eval(call.replace("=...", "=1"), {**NAMES}) is not None, call
            written += 1
    assert written >= 8


def test_names_of_the_vocabulary_are_not_here():
    """A word of `NOT_HERE` that the library gets may stay: names that are here are found first."""
    words = " ".join([*vocabulary.ELSEWHERE.values(), vocabulary.NOT_HERE]).split()
    assert len(words) == len(set(words))
    assert [word for word in words if home(word) and word not in vocabulary.NOT_HERE.split()] == []


def test_what_keeps_nothing_may_train_nothing():
    for transform in (mx.Clip(1.0), mx.Chain(mx.Clip(1.0), mx.Scale(0.1))):
        assert jax.tree.leaves(transform.init(None)) == []


def test_options_and_parts_are_replaced_by_path():
    chain, params = _names()["chain"], _names()["params"]
    mask = {"dense": {"bias": False, "kernel": True}}
    assert mx.describe(chain.replace(mask=mask), params).leaves[0].weight_decay == ""
    assert chain.replace(**{"adamw.nesterov": True}).parts["adamw"].nesterov is True
    lion = chain.replace(adamw=mx.Lion(1e-4))
    assert (list(lion.parts), type(lion.parts["adamw"])) == (["clip", "adamw"], mx.Lion)
    both = mx.Chain(mx.Adam(0.1), mx.NAdam(0.1))
    with pytest.raises(ValueError, match=r"ambiguous.*`parts\.adam\.mu_dtype`, `parts\.nadam\.mu_dtype`"):
        both.replace(mu_dtype="float16")
    halved = both.replace(**{"*.mu_dtype": "float16"})
    parts: list[Any] = list(halved.parts.values())
    assert [part.mu_dtype for part in parts] == ["float16", "float16"]


def test_hyperparameters_are_a_tree_like_a_dict():
    chain, state = _names()["chain"], _names()["chain"].init(_names()["params"])
    values = jax.jit(chain.hyperparameters)(state)
    assert values["learning_rate"] == values["parts.adamw.learning_rate"] == np.float32(1e-3)
    assert list(values) == list(chain.hyperparameters())
    assert values.get("learning_rate") is None  # as in any dict: the paths are the keys
    assert dict(jax.tree.map(lambda x: 2 * x, chain.hyperparameters()))["parts.clip.max_delta"] == 2


def test_an_absent_attribute_costs_little():
    """`hasattr`, which JAX and NumPy call often, does not write the error message."""
    state = _names()["state"]
    with pytest.raises(AttributeError) as caught:
        state.moment  # noqa: B018
    assert (caught.value.name, caught.value.args) == (None, ())  # Python adds no suggestion; nothing is written yet
    assert str(caught.value).startswith("`OptimizerState` has no attribute `moment`.")
    with pytest.raises(AttributeError, match=r"has no attribute `_hidden`"):
        state._hidden  # noqa: B018

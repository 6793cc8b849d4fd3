"""The transforms that `accelerators.py` compiles, each with the bytes that it cannot do without."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

import modulax as mx


@dataclasses.dataclass(frozen=True)
class Row:
    """One transform, and what its step may move.

    A step reads the gradient and the parameters once, reads and writes the state, and writes the parameters. `again`
    are the bytes per parameter that the mathematics asks for beyond that: a norm of the update has to be known before
    a parameter can move, so that something is read twice. `bound` is the largest ratio to the ideal on any device, and
    `why` the reason for more than 1.05.
    """

    name: str
    transform: Any
    optax: Any = None
    again: float = 0.0
    bound: float = 1.05
    temp: float = 0.1
    why: str = ""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtype: Any = jnp.float32

    def ideal(self, params: Any) -> float:
        """Bytes per parameter: every array of the step moved once, and what has to be read again."""
        state = jax.eval_shape(self.transform.init, params)
        number, size = _entries(params), _bytes(params)
        return (3 * size + 2 * _bytes(state)) / number + self.again


def _entries(tree: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(tree))


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def hutchinson(key: Any, params: Any, **extra: Any) -> Any:
    """A stand-in for the curvature, so that only the optimizer is measured."""
    return params


def _value(_: Any) -> Any:
    return jnp.float32(1)


VALUE: dict[str, Any] = {"value": jnp.float32(1)}
ADAM = mx.AdamW(1e-3)

ROWS: tuple[Row, ...] = (
    Row("SGD", mx.SGD(1e-3), optax.sgd(1e-3)),
    Row("SGD, momentum", mx.SGD(1e-3, momentum=0.9), optax.sgd(1e-3, momentum=0.9)),
    Row("NoisySGD", mx.NoisySGD(1e-3), optax.noisy_sgd(1e-3)),
    Row("SignSGD", mx.SignSGD(1e-3), optax.sign_sgd(1e-3)),
    Row("Adam", mx.Adam(1e-3), optax.adam(1e-3)),
    Row("AdamW", ADAM, optax.adamw(1e-3)),
    Row("AdamW, mu in bfloat16", mx.AdamW(1e-3, mu_dtype=jnp.bfloat16), optax.adamw(1e-3, mu_dtype=jnp.bfloat16)),
    Row("AdamW, bfloat16", ADAM, dtype=jnp.bfloat16),
    Row("NAdamW", mx.NAdamW(1e-3), optax.nadamw(1e-3)),
    Row("RAdam", mx.RAdam(1e-3), optax.radam(1e-3)),
    Row("AMSGrad", mx.AMSGrad(1e-3), optax.amsgrad(1e-3)),
    Row("AdaMax", mx.AdaMax(1e-3), optax.adamax(1e-3)),
    Row("AdaBelief", mx.AdaBelief(1e-3), optax.adabelief(1e-3)),
    Row("AdaDelta", mx.AdaDelta(1e-3), optax.adadelta(1e-3)),
    Row("AdaGrad", mx.AdaGrad(1e-3), optax.adagrad(1e-3)),
    Row("AdEMAMix", mx.AdEMAMix(1e-3), optax.contrib.ademamix(1e-3)),
    Row("Adan", mx.Adan(1e-3), optax.adan(1e-3), bound=1.1, why="the gradient is kept, by a copy of its own"),
    Row("ADOPT", mx.ADOPT(1e-3), optax.contrib.adopt(1e-3)),
    Row("Adafactor", mx.Adafactor(1e-3), optax.adafactor(1e-3), again=12),
    Row("RMSProp", mx.RMSProp(1e-3), optax.rmsprop(1e-3)),
    Row("Rprop", mx.RProp(1e-3), optax.rprop(1e-3)),
    Row("Yogi", mx.Yogi(1e-3), optax.yogi(1e-3)),
    Row("NovoGrad", mx.NovoGrad(1e-3), optax.novograd(1e-3), again=4),
    Row("Lion", mx.Lion(1e-3), optax.lion(1e-3)),
    Row("SM3", mx.SM3(1e-3), optax.sm3(1e-3)),
    Row("LARS", mx.LARS(1e-3), optax.lars(1e-3), again=8),
    Row("LAMB", mx.LAMB(1e-3), optax.lamb(1e-3), again=12),
    Row("Fromage", mx.Fromage(1e-3), optax.fromage(1e-3), again=8),
    Row("StableAdamW", mx.StableAdamW(1e-3), again=8),
    Row("Sophia", mx.Sophia(1e-3, obj_fn=_value) if False else None),
    Row("Prodigy", mx.Prodigy(1.0), optax.contrib.prodigy(1.0), again=12),
    Row("DAdaptAdamW", mx.DAdaptAdamW(1.0), optax.contrib.dadapt_adamw(1.0), again=12),
    Row("Schedule-free AdamW", mx.ScheduleFreeAdamW(1e-3), optax.contrib.schedule_free_adamw(1e-3)),
    Row("ClipByGlobalNorm, AdamW", mx.Chain(mx.ClipByGlobalNorm(1.0), ADAM), again=4),
)

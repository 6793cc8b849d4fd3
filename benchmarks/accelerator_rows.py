"""The transforms that `accelerators.py` compiles, each with the bytes that its step cannot do without."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import optax
import optax.contrib

import modulax as mx


@dataclasses.dataclass(frozen=True)
class Row:
    """A transform, optax's counterpart, and what a step may move.

    A step reads the gradient and the parameters, reads and writes the state, and writes the parameters. `again` are the
    bytes per parameter that the mathematics asks for beyond that, in float32: where a norm of the update has to be
    known before a parameter moves, something is read twice. `less` are bytes of the state that a step doesn't read or
    write. `bounds` are the largest ratios to the ideal where they are above 1.05, by device, and `why` is the reason.
    """

    name: str
    transform: Any
    optax: Any = None
    again: float = 0.0
    less: float = 0.0
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    temp: Mapping[str, float] = dataclasses.field(default_factory=dict)
    why: str = ""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: Any = jnp.float32

    def ideal(self, params: Any) -> float:
        """Bytes per parameter, if every array moves as often as it must."""
        state = jax.eval_shape(self.transform.init, params)
        moved = 3 * total_bytes(params) + 2 * total_bytes(state)
        return moved / total_size(params) + self.again - self.less


def total_size(tree: Any) -> int:
    """The number of entries of all arrays of a tree."""
    return sum(x.size for x in jax.tree.leaves(tree))


def total_bytes(tree: Any) -> int:
    """The bytes of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _square(params: Any) -> Any:
    return sum(jnp.vdot(x, x) for x in jax.tree.leaves(params))


VALUE = {"value": jnp.float32(1)}
ADAM = mx.AdamW(1e-3)
REDUCED = "XLA for GPU stores the corrected gradient, because three sums of squares read it: no square may overflow"
STORED = "XLA for GPU stores a direction that two kernels read"
BF16: dict[str, Any] = {"dtype": jnp.bfloat16}
SCALES_FIRST: dict[str, Any] = {
    "bounds": {"v5e": 1.4, "H100": 1.4},
    "temp": {"v5e": 1.1, "H100": 0.2},
    "why": "the scale of a block is known only after all of its entries, which are computed twice",
}
ON_GPU: dict[str, Any] = {"bounds": {"H100": 1.3}, "temp": {"H100": 4.1}, "why": STORED}

OPTIMIZERS: tuple[Row, ...] = (
    Row("SGD", mx.SGD(1e-3), optax.sgd(1e-3)),
    Row("SGD with momentum", mx.SGD(1e-3, momentum=0.9), optax.sgd(1e-3, momentum=0.9)),
    Row("NoisySGD", mx.NoisySGD(1e-3), optax.noisy_sgd(1e-3, key=0)),
    Row("SignSGD", mx.SignSGD(1e-3), optax.sign_sgd(1e-3)),
    Row("Signum", mx.Signum(1e-3)),
    Row("Adam", mx.Adam(1e-3), optax.adam(1e-3)),
    Row("AdamW", ADAM, optax.adamw(1e-3)),
    Row("AdamW, `mu_dtype=bfloat16`", mx.AdamW(1e-3, mu_dtype="bfloat16"), optax.adamw(1e-3, mu_dtype="bfloat16")),
    Row("AdamW, parameters in bfloat16", ADAM, **BF16),
    Row("NAdamW", mx.NAdamW(1e-3), optax.nadamw(1e-3)),
    Row("RAdam", mx.RAdam(1e-3), optax.radam(1e-3)),
    Row("AMSGrad", mx.AMSGrad(1e-3), optax.amsgrad(1e-3)),
    Row("AdamaxW", mx.AdamaxW(1e-3), optax.adamaxw(1e-3)),
    Row("AdaBelief", mx.AdaBelief(1e-3), optax.adabelief(1e-3)),
    Row("Adadelta", mx.Adadelta(1e-3), optax.adadelta(1e-3)),
    Row("Adagrad", mx.Adagrad(1e-3), optax.adagrad(1e-3)),
    Row("AdEMAMix", mx.AdEMAMix(1e-3), optax.contrib.ademamix(1e-3)),
    Row("SimplifiedAdEMAMix", mx.SimplifiedAdEMAMix(1e-3), optax.contrib.simplified_ademamix(1e-3)),
    Row("Adan", mx.Adan(1e-3), optax.adan(1e-3)),
    Row("ACProp", mx.ACProp(1e-3)),
    Row("ADOPT", mx.ADOPT(1e-3), optax.contrib.adopt(1e-3)),
    # The update is clipped by its own norm and scaled by that of the parameters: three norms before the first entry.
    Row("Adafactor", mx.Adafactor(1e-3), optax.adafactor(1e-3), again=12, bounds={"H100": 1.17}, why="one more norm"),
    Row("RMSProp", mx.RMSProp(1e-3), optax.rmsprop(1e-3)),
    Row("Rprop", mx.Rprop(1e-3), optax.rprop(1e-3)),
    Row("Yogi", mx.Yogi(1e-3), optax.yogi(1e-3)),
    Row("NovoGrad", mx.NovoGrad(1e-3), optax.novograd(1e-3), again=4),
    Row("Lion", mx.Lion(1e-3), optax.lion(1e-3)),
    Row("SM3", mx.SM3(1e-3), optax.sm3(1e-3), bounds={"H100": 1.21}, why="maxima of rows and columns in two kernels"),
    Row("LARS", mx.LARS(1e-3), optax.lars(1e-3), again=8),
    Row("LAMB", mx.LAMB(1e-3), optax.lamb(1e-3), again=12),
    Row("Fromage", mx.Fromage(1e-3), optax.fromage(1e-3), again=8),
    Row("StableAdamW", mx.StableAdamW(1e-3), again=8),
    Row("MADGRAD", mx.MADGRAD(1e-3), less=4),
    Row("Sophia", mx.Sophia(1e-3), again=4, extra={"obj_fn": _square}, **ON_GPU),
    Row("Prodigy", mx.Prodigy(1.0), optax.contrib.prodigy(1.0), again=12, less=8),
    Row("DAdaptAdamW", mx.DAdaptAdamW(1.0), optax.contrib.dadapt_adamw(1.0), **ON_GPU),
    Row("DoG", mx.DoG(), optax.contrib.dog(), again=8, less=4),
    Row("COCOB", mx.COCOB(1e-3), optax.contrib.cocob(1e-3), less=4),
    Row("MoMo", mx.MoMo(1e-3), optax.contrib.momo(1e-3), again=8, extra=VALUE, **ON_GPU),
    Row("MoMoAdam", mx.MoMoAdam(1e-3), optax.contrib.momo_adam(1e-3), again=12, extra=VALUE, **ON_GPU),
    Row("PolyakSGD", mx.PolyakSGD(1.0), optax.polyak_sgd(1.0), again=4, extra=VALUE),
    Row("OptimisticAdam", mx.OptimisticAdam(1e-3), **ON_GPU),
    Row("Schedule-free AdamW", mx.ScheduleFreeAdamW(1e-3), optax.contrib.schedule_free_adamw(1e-3)),
    Row("LaProp", mx.LaProp(1e-3)),
    Row("QHM", mx.QHM(1e-3)),
    Row("QHAdam", mx.QHAdam(1e-3)),
    Row("AggMo", mx.AggMo(1e-3)),
    Row("AdamC", mx.AdamC(1e-3)),
    Row("FTRL", mx.FTRL(1e-3)),
    Row("ASGD", mx.ASGD(1e-3)),
    Row("Tiger", mx.Tiger(1e-3), again=8),  # is every gradient finite, and how long are the parameters?
    Row("FOCUS", mx.FOCUS(1e-3)),
    # The factors, the norm of the direction, and the factors of the instability come before the first entry.
    Row(
        "CAME", mx.CAME(1e-3), again=12, bounds={"H100": 1.4}, why="means over rows and columns are made by two kernels"
    ),
    Row("AdamMini", mx.AdamMini(1e-3), again=4),
    Row("AdaHessian", mx.AdaHessian(1e-3), extra={"obj_fn": _square}),
    # The gradient is projected, and has a norm.
    Row("Apollo", mx.Apollo(1e-3), again=8, temp={"H100": 0.3}),
    Row("ApolloMini", mx.ApolloMini(1e-3), again=8),
    Row("Amos", mx.Amos(1e-3)),
    # The mask is divided by its mean.
    Row(
        "CautiousAdamW",
        mx.CautiousAdamW(1e-3),
        again=8,
        bounds={"H100": 1.06},
        temp={"H100": 1.1},
        why="XLA for GPU stores the mask",
    ),
    Row(
        "CautiousLion",
        mx.CautiousLion(1e-3),
        again=8,
        temp={"v5e": 4.1, "H100": 4.1},
        why="the masked direction is stored until its mean is known, which moves no more than making it again",
    ),
    Row("GramsAdamW", mx.GramsAdamW(1e-3)),
    Row("`Chain(GrokFast, AdamW)`", mx.Chain(mx.GrokFast(), ADAM)),
    Row(
        "`Chain(GrokFastMA(4), AdamW)`",
        mx.Chain(mx.GrokFastMA(4), ADAM),
        less=12,  # one of four gradients is replaced
        bounds={"v5e": 1.09, "H100": 1.09},
        why="one kernel reads the whole window, and another one, which reads the gradient again, writes a part of it: "
        "1.01 of the ideal with the default window of 100",
    ),
    Row("MARS", mx.MARS(1e-3), again=8, bounds={"H100": 1.19}, temp={"H100": 4.1}, why=REDUCED),
    Row("MARSLion", mx.MARSLion(1e-3), again=8, bounds={"H100": 1.23}, temp={"H100": 4.1}, why=REDUCED),
    Row("GPAAdamW", mx.GPAAdamW(1e-3)),
)
CONTAINERS: tuple[Row, ...] = (
    Row(
        "`Chain(ClipByGlobalNorm, AdamW)`",
        mx.Chain(mx.ClipByGlobalNorm(1.0), ADAM),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
        again=4,
    ),
    Row("`ApplyIfFinite(AdamW)`", mx.ApplyIfFinite(ADAM, 5), optax.apply_if_finite(optax.adamw(1e-3), 5), again=4),
    Row("`SkipSpikes(AdamW)`", mx.SkipSpikes(ADAM), again=4),
    Row("`MultiSteps(AdamW, 4)`", mx.MultiSteps(ADAM, 4), optax.MultiSteps(optax.adamw(1e-3), 4)),
    Row("`Lookahead(AdamW)`", mx.Lookahead(ADAM, 6, 0.5)),
    Row("`ParamEMA(AdamW)`", mx.ParamEMA(ADAM)),
    # A synchronization is counted too, which is one step in 500.
    Row(
        "`DiLoCo(AdamW)`",
        mx.DiLoCo(ADAM),
        again=24,
        bounds={"H100": 1.24},
        temp={"v5e": 4.1, "H100": 16.1},
        why="workers communicate in a branch, which stores the update; XLA for GPU copies what the branch passes on",
    ),
    Row("`MasterWeights(AdamW)`, bfloat16", mx.MasterWeights(ADAM), **BF16),
    Row("`StochasticRounding(AdamW)`, bfloat16", mx.StochasticRounding(ADAM), **BF16),
    Row(
        "`LossScaling(MasterWeights(AdamW))`, float16",
        mx.LossScaling(mx.MasterWeights(ADAM)),
        dtype=jnp.float16,
        again=2,
    ),
    Row("`groups(AdamW)`", mx.groups(ADAM, {"w": {"weight_decay": 0.1}})),
    Row("`LowBit(AdamW)`, 8 bits", mx.LowBit(ADAM), **SCALES_FIRST),
    Row(
        "`LowBit(AdamW)`, 4 bits",
        mx.LowBit(ADAM, bits=4),
        bounds={"v5e": 1.7, "H100": 1.6},
        temp={"v5e": 3.1, "H100": 1.2},
        why="as in 8 bits, and the codes are packed and unpacked in kernels of their own, of which the libtpu of JAX "
        "0.12 keeps three temporary arrays",
    ),
    Row("`LowBit(Lion)`, 8 bits", mx.LowBit(mx.Lion(1e-3)), **SCALES_FIRST),
)


def hidden_matrices(params: Any) -> Any:
    """What optax's `muon` needs to know to leave out embeddings, biases and gains, and to train stacks of matrices."""

    def dimensions(path: Any, p: Any) -> Any:
        is_hidden = p.ndim > 1 and not any(word in jtu.keystr(path) for word in ("embed", "position", "bias", "scale"))
        return optax.contrib.MuonDimensionNumbers(p.ndim - 2, p.ndim - 1) if is_hidden else None

    return jtu.tree_map_with_path(dimensions, params)


OF_MATRICES: tuple[Row, ...] = (
    Row("AdamW", ADAM, optax.adamw(1e-3)),
    CONTAINERS[0],
    next(row for row in OPTIMIZERS if row.name == "LAMB"),
    next(row for row in OPTIMIZERS if row.name == "Adafactor"),
    Row("`Flatten(AdamW)`", mx.Flatten(ADAM)),
    Row("`Stacked(AdamW)`", mx.Stacked(ADAM)),
    Row("`LowBit(AdamW)`, 8 bits", mx.LowBit(ADAM)),
    Row(
        "Muon",
        mx.Muon(2e-2, adam_learning_rate=1e-3),
        optax.contrib.muon(2e-2, muon_weight_dimension_numbers=hidden_matrices),
    ),
    Row("GaLore", mx.GaLore(1e-3)),
)


def gpt2(*, is_stacked: bool = True) -> Any:
    """Shapes of the parameters of GPT-2 with 124M parameters: 16 arrays, or 148 if the layers are not stacked."""
    width, layers = 768, 12
    block = {
        "attention": {"qkv": (width, 3 * width), "qkv_bias": (3 * width,), "out": (width, width), "out_bias": (width,)},
        "mlp": {"up": (width, 4 * width), "up_bias": (4 * width,), "down": (4 * width, width), "down_bias": (width,)},
        "norm1": {"scale": (width,), "bias": (width,)},
        "norm2": {"scale": (width,), "bias": (width,)},
    }
    one = {"embedding": (50257, width), "position": (1024, width), "norm": {"scale": (width,), "bias": (width,)}}
    if not is_stacked:
        return one | {f"block{i}": block for i in range(layers)}
    stacked = jax.tree.map(lambda shape: (layers, *shape), block, is_leaf=lambda x: isinstance(x, tuple))
    return one | {"blocks": stacked}

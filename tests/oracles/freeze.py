"""Run the authors' released code and freeze its trajectories in `trajectories.npz`; see README.md.

    python tests/oracles/freeze.py CHECKOUTS

CHECKOUTS is a folder that holds the repositories of the table in README.md, each
checked out as OWNER+NAME. Nothing of them is copied: the script imports their modules and calls them.
"""

import enum
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
loops: Any = importlib.import_module("loops")  # its neighbour; the package around it needs JAX
add, every, package, released, stub = loops.add, loops.every, loops.package, loops.released, loops.stub
Case, PLAIN, SMALL, STEPS, torch = loops.Case, loops.PLAIN, loops.SMALL, loops.STEPS, loops.torch
Arrays = dict[str, np.ndarray]
Params = dict[str, Any]


# --- PyTorch ----------------------------------------------------------------------------------------


def step_with_loss(optimizer: Any, params: Params, t: int) -> None:
    noise = {n: x[t] for n, x in SMALL.noise.items()}
    optimizer.step(loss=torch.tensor(SMALL.loss(PLAIN.arrays(params), noise)))


class Averaged:
    """An optimizer, and the average of PyTorch's `AveragedModel`; before the first one, the parameters."""

    def __init__(self, params: Params, cls: Any, average: Any, start: int, every: int, **hyperparameters: Any) -> None:
        self.start, self.every, self.count = start, every, 0
        self.model = torch.nn.ParameterDict(params)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=average)
        self.optimizer = cls(list(params.values()), **hyperparameters)

    def step(self) -> None:
        self.optimizer.step()
        self.count += 1
        if self.count > self.start and (self.count - self.start) % self.every == 0:
            self.average.update_parameters(self.model)

    def points(self, params: Params) -> Params:
        return dict((self.average.module if self.average.n_averaged else self.model).items())


def averaged(cls: Any, average: Any, start: int = 0, every: int = 1, **hyperparameters: Any) -> Any:
    def build(params: Params) -> Averaged:
        return Averaged(params, cls, average, start, every, **hyperparameters)

    return loops.torch_case(build, read=Averaged.points)


def torch_averages() -> None:
    o, ema, swa = torch.optim, torch.optim.swa_utils.get_ema_multi_avg_fn, torch.optim.swa_utils.get_swa_multi_avg_fn
    add("ParamEMA", default=averaged(o.SGD, ema(), lr=0.1),
        all=averaged(o.AdamW, ema(0.8), start=10, every=3, lr=0.05))  # fmt: skip
    add("ParamAverage", default=averaged(o.SGD, swa(), lr=0.1),
        all=averaged(o.AdamW, swa(), start=10, every=3, lr=0.05))  # fmt: skip


def torch_optimizers() -> None:
    o = torch.optim
    add("SGD", default=every(o.SGD, lr=0.1),
        all=every(o.SGD, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1))  # fmt: skip
    add("AdamW", default=every(o.AdamW, lr=0.05),
        all=every(o.AdamW, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2))  # fmt: skip
    add("AMSGrad", default=every(o.Adam, lr=0.05, amsgrad=True),
        all=every(o.Adam, lr=0.1, betas=(0.8, 0.9), eps=1e-3, amsgrad=True))  # fmt: skip
    add("RMSProp", default=every(o.RMSprop, lr=0.02),
        all=every(o.RMSprop, lr=0.02, alpha=0.9, eps=1e-3, momentum=0.5, centered=True))  # fmt: skip
    add("RAdam", default=every(o.RAdam, lr=0.05, eps=0.0),
        all=every(o.RAdam, lr=0.1, betas=(0.8, 0.95), eps=0.0),
        eps=every(o.RAdam, lr=0.05, eps=1e-3))  # fmt: skip
    add("Adamax", default=every(o.Adamax, lr=0.05), all=every(o.Adamax, lr=0.1, betas=(0.8, 0.95)))
    add("Adadelta", default=every(o.Adadelta), all=every(o.Adadelta, lr=3.0, rho=0.8, eps=1e-3))
    add("Rprop", default=every(o.Rprop), all=every(o.Rprop, lr=0.1, etas=(0.4, 1.5), step_sizes=(1e-3, 0.5)))


def authors_packages() -> None:
    """Packages that pip installs."""
    sf: Any = importlib.import_module("schedulefree")
    add(
        "ScheduleFreeSGD",
        default=every(sf.SGDScheduleFree, lr=0.5),
        all=every(sf.SGDScheduleFree, lr=0.2, momentum=0.8, weight_decay=0.1, warmup_steps=10, weight_lr_power=1),
    )
    adamw = sf.AdamWScheduleFree
    warm = {"lr": 0.1, "betas": (0.95, 0.99), "eps": 1e-4, "weight_decay": 0.1, "warmup_steps": 10}
    add("ScheduleFreeAdamW", default=every(adamw, lr=0.05), all=every(adamw, **warm),
        warm_up=every(adamw, lr=0.05, warmup_steps=10), decay=every(adamw, lr=0.05, weight_decay=0.1),
        evaluated=every(adamw, **warm, read=loops.evaluated))  # fmt: skip
    dadapt = importlib.import_module("dadaptation").DAdaptAdam
    add(
        "DAdaptAdamW",
        default=every(dadapt, decouple=True),
        all=every(dadapt, decouple=True, lr=0.5, betas=(0.8, 0.99), eps=1e-4, d0=1e-2, weight_decay=0.1),
    )
    prodigy = importlib.import_module("prodigyopt").Prodigy
    more = {"eps": 1e-4, "d0": 1e-2, "d_coef": 1.2, "weight_decay": 0.1, "safeguard_warmup": True}
    add("Prodigy", default=every(prodigy),
        all=every(prodigy, lr=0.5, betas=(0.8, 0.99), beta3=0.9, **more))  # fmt: skip
    dog = importlib.import_module("dog").DoG
    add("DoG", default=every(dog), all=every(dog, lr=0.5, reps_rel=1e-2, eps=1e-3, weight_decay=0.1))
    madgrad = importlib.import_module("madgrad").MADGRAD
    add("MADGRAD", default=every(madgrad, lr=0.05),
        all=every(madgrad, lr=0.1, momentum=0.5, weight_decay=0.1, eps=1e-3))  # fmt: skip
    belief = functools.partial(importlib.import_module("adabelief_pytorch").AdaBelief, print_change_log=False)
    add("AdaBelief", default=every(belief, lr=0.05, rectify=False),
        all=every(belief, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, rectify=False),
        rectified=every(belief, lr=0.05))  # fmt: skip


def authors_repositories() -> None:
    """Repositories without a package, imported by their paths."""
    acprop = released("juntang-zhuang/ACProp-Optimizer", "optimizers/ACProp.py").ACProp
    add("ACProp", default=every(acprop, lr=0.05, rectify=False),
        all=every(acprop, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, rectify=False),
        rectified=every(acprop, lr=0.05))  # fmt: skip
    momo = package("fabian-sp/MoMo", "", "momo")
    with_loss = functools.partial(every, step=step_with_loss)
    bound = {"weight_decay": 0.1, "lb": 1.0, "use_fstar": True}
    add("MoMo", default=with_loss(momo.Momo), all=with_loss(momo.Momo, lr=0.1, beta=0.8, **bound))
    add("MoMoAdam", default=with_loss(momo.MomoAdam),
        all=with_loss(momo.MomoAdam, lr=0.1, betas=(0.8, 0.95), eps=1e-3, **bound))  # fmt: skip
    mechanize = package("optimizedlearning/mechanic", "src", "mechanic_pytorch").mechanize
    sgd = torch.optim.SGD
    add("Mechanize", default=every(mechanize(sgd, s_init=1e-6, store_delta=True), lr=1.0),
        all=every(mechanize(sgd, s_decay=0.1, betas=(0.9, 0.99, 0.999), s_init=1e-2, eps=1e-6, store_delta=True),
                       lr=1.0, momentum=0.8),
        recomputed=every(mechanize(sgd, s_init=1e-6), lr=1.0))  # fmt: skip
    adopt = package("iShohei220/adopt", "src", "adopt").ADOPT
    add("ADOPT", default=every(adopt, lr=0.05),
        all=every(adopt, lr=0.05, betas=(0.8, 0.95), eps=1e-2, clip_lambda=None),
        decoupled=every(adopt, lr=0.05, weight_decay=0.1, decouple=True),
        decoupled_all=every(adopt, lr=0.05, betas=(0.8, 0.95), eps=1e-2, clip_lambda=None, weight_decay=0.3,
                                 decouple=True))  # fmt: skip
    ademamix = released("apple/ml-ademamix", "pytorch/ademamix.py").AdEMAMix
    add("AdEMAMix", default=every(ademamix, lr=0.02),
        all=every(ademamix, lr=0.02, betas=(0.8, 0.95, 0.99), alpha=4.0, beta3_warmup=15, alpha_warmup=15,
                       eps=1e-3, weight_decay=0.1))  # fmt: skip
    adan = released("sail-sg/Adan", "adan.py").Adan
    add("Adan", default=every(adan, lr=0.02),
        all=every(adan, lr=0.05, betas=(0.9, 0.8, 0.95), eps=1e-3, weight_decay=0.1),
        no_prox=every(adan, lr=0.05, weight_decay=0.1, no_prox=True),
        clipped=every(adan, lr=0.05, eps=1e-3, weight_decay=0.1, max_grad_norm=0.5))  # fmt: skip
    lion = released("google/automl", "lion/lion_pytorch.py").Lion
    add("Lion", default=every(lion, lr=0.02),
        all=every(lion, lr=0.01, betas=(0.8, 0.95), weight_decay=0.3))  # fmt: skip
    jasper = "PyTorch/SpeechRecognition/Jasper/common/optimizers.py"
    novograd = released("NVIDIA/DeepLearningExamples", jasper).Novograd
    add("NovoGrad", default=every(novograd, lr=0.02),
        all=every(novograd, lr=0.02, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.1))  # fmt: skip
    cocob = package("bremen79/parameterfree", "", "parameterfree").COCOB
    add("COCOB", default=every(cocob), all=every(cocob, alpha=10, eps=1e-2, weight_decay=0.1))
    dowg = package("rka97/dowg", "", "dowg").DoWG
    add("DoWG", default=every(dowg), all=every(dowg, eps=1e-2))
    fromage = released("jxbz/fromage", "fromage.py").Fromage
    add("Fromage", default=every(fromage), all=every(fromage, lr=0.1))


def sophia() -> None:
    """The squares of sampled gradients stand in for the estimate of Gauss, Newton and Bartlett."""
    cls = released("Liuhong99/Sophia", "sophia.py").SophiaG

    def case(interval: int, scale: float, late: bool = False, **hyperparameters: Any) -> Any:
        def step(optimizer: Any, params: Params, t: int) -> None:
            if t % interval == 0 and not (late and t == 0):
                for n, p in params.items():
                    p.grad = torch.tensor(loops.problem.SAMPLED[n][t])
                optimizer.update_hessian()
                PLAIN.set_gradients(params, t)
            optimizer.step(bs=scale)

        return every(cls, step=step, **hyperparameters)

    add("Sophia", default=case(10, 2500.0, lr=0.02, weight_decay=0.0),
        all=case(3, 100.0, lr=0.05, betas=(0.8, 0.9), rho=0.05, weight_decay=0.1),
        late=case(10, 2500.0, late=True, lr=0.02, weight_decay=0.0))  # fmt: skip


def sam() -> None:
    cls = released("davda54/sam", "sam.py").SAM

    def step(optimizer: Any, params: Params, t: int) -> None:
        optimizer.first_step()
        PLAIN.set_gradients(params, t)
        optimizer.second_step()

    case = functools.partial(every, cls, step=step)
    o = torch.optim
    add("SAM", default=case(base_optimizer=o.SGD, lr=0.1),
        all=case(base_optimizer=o.AdamW, rho=0.3, lr=0.05, weight_decay=0.1),
        adaptive=case(base_optimizer=o.SGD, rho=2.0, adaptive=True, lr=0.1))  # fmt: skip


def without_cast(name: str, case: Any) -> Any:
    """A case that runs without a cast of tensors."""

    def run(start: Arrays) -> Iterator[Arrays]:
        cast = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, lambda x: x)
        try:
            yield from case.run(start)
        finally:
            setattr(torch.Tensor, name, cast)

    return case._replace(run=run)


LINEAR = loops.Layout(SMALL, ("matrix",))


def muon() -> None:
    """Its iteration runs in bfloat16; the cast is lifted."""
    cls = released("KellerJordan/Muon", "muon.py").SingleDeviceMuonWithAuxAdam

    def case(matrices: dict[str, Any], others: dict[str, Any]) -> Any:
        def build(params: Params) -> Any:
            groups = [
                {"params": [params["matrix"]], "use_muon": True, **matrices},
                {"params": [params["vector"]], "use_muon": False, **others},
            ]
            return cls(groups)

        return loops.torch_case(build, LINEAR)

    default = case({"lr": 0.05}, {"lr": 0.05, "eps": 1e-7})
    others = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.2}
    both = case({"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1}, others)
    add("Muon", default=without_cast("bfloat16", default), all=without_cast("bfloat16", both), bfloat16=default)


def galore() -> None:
    """Its singular vectors are computed in float32; the cast is lifted."""
    adamw = galore_adamw()

    def case(rank: int, gap: int, scale: float, **hyperparameters: Any) -> Any:
        def build(params: Params) -> Any:
            projected = {"rank": rank, "update_proj_gap": gap, "scale": scale, "proj_type": "std"}
            groups = [{"params": [params["matrix"]], **projected}, {"params": [params["vector"]]}]
            return adamw(groups, no_deprecation_warning=True, **hyperparameters)

        return without_cast("float", loops.torch_case(build, LINEAR))

    add("GaLore", default=case(1, 200, 1.0, lr=0.05, eps=0.0),
        all=case(1, 7, 0.25, lr=0.1, betas=(0.0, 0.95), eps=0.0),
        signs=case(1, 7, 0.25, lr=0.1, betas=(0.8, 0.95), eps=0.0),
        eps_and_decay=case(1, 200, 1.0, lr=0.05, weight_decay=0.1))  # fmt: skip


def galore_adamw() -> Any:
    """AdamW of GaLore; its package imports others, some of which need a GPU."""
    for name in ("transformers", "transformers.utils"):
        stub(name)
    stub("transformers.utils.versions", require_version=lambda version: None)
    stub("tensorly", set_backend=lambda name: None)
    stub("tensorly.decomposition", tucker=None)
    stub("tensorly.tenalg", tenalg=None)
    return loops.part("jiaweizzhao/GaLore", "galore_torch", "adamw").AdamW


def clipping() -> None:
    """SGD after clips whose bound follows the norms. The 1e-6 that both add to the norm before dividing is lifted."""
    stable = functools.partial(importlib.import_module("optimi").StableAdamW, foreach=False, triton=False)
    add("StableAdamW", default=every(stable, lr=0.05, eps=1e-8, weight_decay=0.0),
        all=every(stable, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.0),
        decay=every(stable, lr=0.05, eps=1e-8, weight_decay=0.1))  # fmt: skip

    class Norm(float):
        """A norm to which nothing is added."""

        def __add__(self, other: Any) -> float:
            return float(self)

    def with_clip(rate: float, start: Callable[[Any], Callable[[], Any]]) -> Any:
        def build(params: Params) -> Any:
            optimizer = torch.optim.SGD(list(params.values()), lr=rate)
            clip = start(types.SimpleNamespace(parameters=lambda: iter(params.values()), modules=lambda: ()))
            return types.SimpleNamespace(step=lambda: (clip(), optimizer.step()))

        return loops.torch_case(build)

    cls = released("bluorion-com/ZClip", "zclip/zclip.py").ZClip

    def zclip(**hyperparameters: Any) -> Callable[[Any], Callable[[], Any]]:
        def start(model: Any) -> Callable[[], Any]:
            clip = cls(max_grad_norm=None, **hyperparameters)
            clip._compute_grad_norm = lambda model: Norm(cls._compute_grad_norm(clip, model))
            return lambda: clip.step(model)

        return start

    add("ClipByRunningNorm", default=with_clip(0.1, zclip(z_thresh=1.0)),
        all=with_clip(0.2, zclip(alpha=0.8, z_thresh=0.5, eps=1e-2, warmup_steps=5)))  # fmt: skip

    stub("ignite")
    stub("ignite.engine", EventEnum=enum.Enum)
    handler = released("pseeth/autoclip", "autoclip.py").add_autoclip_gradient_handler

    def exactly(params: Any, max_norm: float) -> None:
        params = list(params)
        norm = torch.sqrt(sum((p.grad**2).sum() for p in params))
        for p in params:
            p.grad *= min(1.0, max_norm / norm)

    def autoclip(percentile: float) -> Callable[[Any], Callable[[], Any]]:
        def start(model: Any) -> Callable[[], Any]:
            handlers: list[Any] = []
            handler(types.SimpleNamespace(on=lambda event: handlers.append), model, percentile)

            def clip() -> None:
                inexact, torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_, exactly
                try:
                    handlers[0](None)
                finally:
                    torch.nn.utils.clip_grad_norm_ = inexact

            return clip

        return start

    add("ClipByNormPercentile", default=with_clip(0.1, autoclip(10)), all=with_clip(0.2, autoclip(65)))


# --- JAX --------------------------------------------------------------------------------------------


def spikes() -> None:
    """Steps are skipped by the loss and by the norm; decisions are made in float32."""
    jax: Any = importlib.import_module("jax")
    optax: Any = importlib.import_module("optax")
    jax.config.update("jax_enable_x64", True)

    def case(make: Callable[[], Any], knows_norm: bool) -> Any:
        def run(start: Arrays) -> Iterator[Arrays]:
            params, transform = dict(start), make()
            state = transform.init(params)
            for t in range(STEPS):
                grads = {n: SMALL.gradient(n, w, SMALL.noise[n][t]) for n, w in params.items()}
                extra = {"loss": SMALL.loss(params, {n: noise[t] for n, noise in SMALL.noise.items()})}
                if not knows_norm:
                    extra["grad_norm"] = optax.global_norm(grads)
                updates, state = transform.update(grads, state, params, **extra)
                params = {n: w + np.asarray(updates[n]) for n, w in params.items()}
                yield params

        return Case(SMALL.start, run)

    for name in ("maxtext", "maxtext.common", "maxtext.utils", "haliax", "levanter", "levanter.utils"):
        stub(name)
    stub("maxtext.common.common_types", DecoderBlockType=None)
    stub("maxtext.utils.muon_utils", get_muon_weight_dimension_numbers=None)
    skipping = released("AI-Hypercomputer/maxtext", "src/maxtext/optimizers/optimizers.py").skip_step_on_spikes
    stub("haliax.jax_utils", is_jax_array_like=lambda x: True)
    stub("levanter.tracker", jit_log=lambda metrics: None)
    stub("levanter.utils.tree_utils", tree_flatten_one_level_with_keys=None)
    sys.modules["levanter"].tracker = sys.modules["levanter.tracker"]  # pyright: ignore[reportAttributeAccessIssue]
    config = released("stanford-crfm/levanter", "src/levanter/optim/skipstep.py").SkipStepConfig
    sgd = functools.partial(optax.sgd, 0.1)
    add("SkipSpikes", default=case(lambda: skipping(sgd(), 8, 1.5), False),
        all=case(lambda: skipping(optax.sgd(0.02, 0.8), 5, 0.5), False),
        levanter=case(lambda: config(8, 1.5).wrap(sgd()), True))  # fmt: skip


# --- TensorFlow -------------------------------------------------------------------------------------


def tensorflow_optimizers() -> None:
    tf: Any = importlib.import_module("tensorflow")
    stub("tensorflow_addons")
    stub("tensorflow_addons.optimizers", KerasLegacyOptimizer=tf.keras.optimizers.legacy.Optimizer)
    stub("tensorflow_addons.optimizers.utils", is_variable_matched_by_regexes=lambda variable, patterns: False)
    stub("tensorflow_addons.utils")
    stub("tensorflow_addons.utils.types", FloatTensorLike=Any)

    def wide(x: Any) -> Any:
        return tf.constant(x, tf.float64)

    def case(make: Callable[[], Any]) -> Any:
        def run(start: Arrays) -> Iterator[Arrays]:
            params = {n: tf.Variable(w, dtype=tf.float64) for n, w in start.items()}
            optimizer = make()
            for t in range(STEPS):
                grads = [tf.constant(SMALL.gradient(n, w.numpy(), SMALL.noise[n][t])) for n, w in params.items()]
                optimizer.apply_gradients(zip(grads, params.values(), strict=True))
                yield {n: w.numpy().copy() for n, w in params.items()}

        return Case(SMALL.start, run)

    lamb = released("tensorflow/addons", "tensorflow_addons/optimizers/lamb.py").LAMB
    add("LAMB", default=case(lambda: lamb(wide(0.05), wide(0.9), wide(0.999))),
        all=case(lambda: lamb(wide(0.1), wide(0.8), wide(0.95), 1e-3, wide(0.1))))  # fmt: skip
    yogi = released("tensorflow/addons", "tensorflow_addons/optimizers/yogi.py").Yogi
    add("Yogi", default=case(lambda: yogi(wide(0.05), wide(0.9), wide(0.999), wide(1e-3))),
        all=case(lambda: yogi(wide(0.1), wide(0.8), wide(0.95), wide(1e-2))))  # fmt: skip
    sm3 = released("google-research/google-research", "sm3/sm3.py")
    sm3.tf.zeros = functools.partial(tf.zeros, dtype=tf.float64)
    add("SM3", default=case(lambda: sm3.SM3Optimizer(np.float64(0.1), np.float64(0.9))),
        all=case(lambda: sm3.SM3Optimizer(np.float64(0.3), np.float64(0.5))))  # fmt: skip


def main() -> None:
    for family in (torch_optimizers, torch_averages, authors_packages, authors_repositories, sophia, sam, muon, galore,
                   clipping, spikes, tensorflow_optimizers):  # fmt: skip
        family()
    loops.write("trajectories", {}, has_floors=False)


if __name__ == "__main__":
    main()

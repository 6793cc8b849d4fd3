"""Run the authors' released code and freeze its trajectories in `trajectories.npz`; see README.md.

    python tests/oracles/freeze.py CHECKOUTS

CHECKOUTS is a folder that holds the repositories of the table in README.md, each
checked out as OWNER+NAME. Nothing of them is copied: the script imports their modules and calls them.
"""

import enum
import functools
import importlib
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FROZEN = Path(__file__).with_name("trajectories.npz")
CHECKOUTS = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
problem: Any = importlib.import_module("problem")  # its neighbour; the package around it needs JAX
NOISE, SAMPLED, START, STEPS = problem.NOISE, problem.SAMPLED, problem.START, problem.STEPS
gradient, loss = problem.gradient, problem.loss
torch: Any = importlib.import_module("torch")
torch.set_default_dtype(torch.float64)  # several of them make their scalars in the default dtype

Params = dict[str, np.ndarray]
Loop = Callable[[], Iterator[Params]]
CASES: dict[str, Loop] = {}


def released(repository: str, file: str) -> Any:
    """A module of a checkout, by its path there."""
    path = CHECKOUTS / repository.replace("/", "+") / file
    spec = importlib.util.spec_from_file_location(f"released_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def package(repository: str, folder: str, name: str) -> Any:
    """A package of a checkout."""
    sys.path.insert(0, str(CHECKOUTS / repository.replace("/", "+") / folder))
    return importlib.import_module(name)


def stub(name: str, **members: Any) -> None:
    """Put a module in the place of one that is imported and not needed."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def add(name: str, **settings: Loop) -> None:
    CASES.update({f"{name}/{setting}": loop for setting, loop in settings.items()})


# --- PyTorch ----------------------------------------------------------------------------------------


def parameters(is_transposed: bool = False) -> dict[str, Any]:
    """The starting point; a weight of PyTorch is (out, in), the transpose of one of JAX."""
    return {n: torch.nn.Parameter(torch.tensor(w.T.copy() if is_transposed else w)) for n, w in START.items()}


def values(params: dict[str, Any], is_transposed: bool = False) -> Params:
    arrays = {n: p.detach().numpy().copy() for n, p in params.items()}
    return {n: w.T if is_transposed else w for n, w in arrays.items()}


def set_gradients(params: dict[str, Any], t: int, is_transposed: bool = False) -> None:
    for n, w in values(params, is_transposed).items():
        g = gradient(n, w, NOISE[n][t])
        params[n].grad = torch.tensor(g.T.copy() if is_transposed else g)


def loss_at(params: dict[str, Any], t: int) -> Any:
    return torch.tensor(loss(values(params), {n: noise[t] for n, noise in NOISE.items()}))


def torch_loop(make: Callable[[Any], Any], is_transposed: bool = False, needs_loss: bool = False) -> Loop:
    def loop() -> Iterator[Params]:
        params = parameters(is_transposed)
        optimizer = make(params)
        getattr(optimizer, "train", lambda: None)()
        for t in range(STEPS):
            set_gradients(params, t, is_transposed)
            optimizer.step(**({"loss": loss_at(params, t)} if needs_loss else {}))
            yield values(params, is_transposed)

    return loop


def with_torch(cls: Callable[..., Any], *, needs_loss: bool = False, **hyperparameters: Any) -> Loop:
    return torch_loop(lambda params: cls(list(params.values()), **hyperparameters), needs_loss=needs_loss)


def evaluated(cls: Any, **hyperparameters: Any) -> Loop:
    """The evaluation parameters after each step, in place of those that are trained."""

    def loop() -> Iterator[Params]:
        params = parameters()
        optimizer = cls(list(params.values()), **hyperparameters)
        for t in range(STEPS):
            optimizer.train()
            set_gradients(params, t)
            optimizer.step()
            optimizer.eval()
            yield values(params)

    return loop


def averaged(cls: Any, average: Any, start: int = 0, every: int = 1, **hyperparameters: Any) -> Loop:
    """The average of PyTorch's `AveragedModel` after each step; before the first one, the parameters."""

    def loop() -> Iterator[Params]:
        params = parameters()
        model = torch.nn.ParameterDict(params)
        averaged_model = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average)
        optimizer = cls(list(params.values()), **hyperparameters)
        for t in range(STEPS):
            set_gradients(params, t)
            optimizer.step()
            if t + 1 > start and (t + 1 - start) % every == 0:
                averaged_model.update_parameters(model)
            yield values(dict((averaged_model.module if averaged_model.n_averaged else model).items()))

    return loop


def torch_averages() -> None:
    o, ema, swa = torch.optim, torch.optim.swa_utils.get_ema_multi_avg_fn, torch.optim.swa_utils.get_swa_multi_avg_fn
    add("ParamEMA", default=averaged(o.SGD, ema(), lr=0.1),
        all=averaged(o.AdamW, ema(0.8), start=10, every=3, lr=0.05))  # fmt: skip
    add("ParamAverage", default=averaged(o.SGD, swa(), lr=0.1),
        all=averaged(o.AdamW, swa(), start=10, every=3, lr=0.05))  # fmt: skip


def torch_optimizers() -> None:
    o = torch.optim
    add("SGD", default=with_torch(o.SGD, lr=0.1),
        all=with_torch(o.SGD, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1))  # fmt: skip
    add("AdamW", default=with_torch(o.AdamW, lr=0.05),
        all=with_torch(o.AdamW, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2))  # fmt: skip
    add("AMSGrad", default=with_torch(o.Adam, lr=0.05, amsgrad=True),
        all=with_torch(o.Adam, lr=0.1, betas=(0.8, 0.9), eps=1e-3, amsgrad=True))  # fmt: skip
    add("RMSProp", default=with_torch(o.RMSprop, lr=0.02),
        all=with_torch(o.RMSprop, lr=0.02, alpha=0.9, eps=1e-3, momentum=0.5, centered=True))  # fmt: skip
    add("RAdam", default=with_torch(o.RAdam, lr=0.05, eps=0.0),
        all=with_torch(o.RAdam, lr=0.1, betas=(0.8, 0.95), eps=0.0),
        eps=with_torch(o.RAdam, lr=0.05, eps=1e-3))  # fmt: skip
    add("Adamax", default=with_torch(o.Adamax, lr=0.05), all=with_torch(o.Adamax, lr=0.1, betas=(0.8, 0.95)))
    add("Adadelta", default=with_torch(o.Adadelta), all=with_torch(o.Adadelta, lr=3.0, rho=0.8, eps=1e-3))
    add("Rprop", default=with_torch(o.Rprop), all=with_torch(o.Rprop, lr=0.1, etas=(0.4, 1.5), step_sizes=(1e-3, 0.5)))


def authors_packages() -> None:
    """Packages that pip installs."""
    sf: Any = importlib.import_module("schedulefree")
    add(
        "ScheduleFreeSGD",
        default=with_torch(sf.SGDScheduleFree, lr=0.5),
        all=with_torch(sf.SGDScheduleFree, lr=0.2, momentum=0.8, weight_decay=0.1, warmup_steps=10, weight_lr_power=1),
    )
    adamw = sf.AdamWScheduleFree
    warm = {"lr": 0.1, "betas": (0.95, 0.99), "eps": 1e-4, "weight_decay": 0.1, "warmup_steps": 10}
    add("ScheduleFreeAdamW", default=with_torch(adamw, lr=0.05), all=with_torch(adamw, **warm),
        warm_up=with_torch(adamw, lr=0.05, warmup_steps=10), decay=with_torch(adamw, lr=0.05, weight_decay=0.1),
        evaluated=evaluated(adamw, **warm))  # fmt: skip
    dadapt = importlib.import_module("dadaptation").DAdaptAdam
    add(
        "DAdaptAdamW",
        default=with_torch(dadapt, decouple=True),
        all=with_torch(dadapt, decouple=True, lr=0.5, betas=(0.8, 0.99), eps=1e-4, d0=1e-2, weight_decay=0.1),
    )
    prodigy = importlib.import_module("prodigyopt").Prodigy
    more = {"eps": 1e-4, "d0": 1e-2, "d_coef": 1.2, "weight_decay": 0.1, "safeguard_warmup": True}
    add("Prodigy", default=with_torch(prodigy),
        all=with_torch(prodigy, lr=0.5, betas=(0.8, 0.99), beta3=0.9, **more))  # fmt: skip
    dog = importlib.import_module("dog").DoG
    add("DoG", default=with_torch(dog), all=with_torch(dog, lr=0.5, reps_rel=1e-2, eps=1e-3, weight_decay=0.1))
    madgrad = importlib.import_module("madgrad").MADGRAD
    add("MADGRAD", default=with_torch(madgrad, lr=0.05),
        all=with_torch(madgrad, lr=0.1, momentum=0.5, weight_decay=0.1, eps=1e-3))  # fmt: skip
    belief = functools.partial(importlib.import_module("adabelief_pytorch").AdaBelief, print_change_log=False)
    add("AdaBelief", default=with_torch(belief, lr=0.05, rectify=False),
        all=with_torch(belief, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, rectify=False),
        rectified=with_torch(belief, lr=0.05))  # fmt: skip


def authors_repositories() -> None:
    """Repositories without a package, imported by their paths."""
    acprop = released("juntang-zhuang/ACProp-Optimizer", "optimizers/ACProp.py").ACProp
    add("ACProp", default=with_torch(acprop, lr=0.05, rectify=False),
        all=with_torch(acprop, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, rectify=False),
        rectified=with_torch(acprop, lr=0.05))  # fmt: skip
    momo = package("fabian-sp/MoMo", "", "momo")
    with_loss = functools.partial(with_torch, needs_loss=True)
    bound = {"weight_decay": 0.1, "lb": 1.0, "use_fstar": True}
    add("MoMo", default=with_loss(momo.Momo), all=with_loss(momo.Momo, lr=0.1, beta=0.8, **bound))
    add("MoMoAdam", default=with_loss(momo.MomoAdam),
        all=with_loss(momo.MomoAdam, lr=0.1, betas=(0.8, 0.95), eps=1e-3, **bound))  # fmt: skip
    mechanize = package("optimizedlearning/mechanic", "src", "mechanic_pytorch").mechanize
    sgd = torch.optim.SGD
    add("Mechanize", default=with_torch(mechanize(sgd, s_init=1e-6, store_delta=True), lr=1.0),
        all=with_torch(mechanize(sgd, s_decay=0.1, betas=(0.9, 0.99, 0.999), s_init=1e-2, eps=1e-6, store_delta=True),
                       lr=1.0, momentum=0.8),
        recomputed=with_torch(mechanize(sgd, s_init=1e-6), lr=1.0))  # fmt: skip
    adopt = package("iShohei220/adopt", "src", "adopt").ADOPT
    add("ADOPT", default=with_torch(adopt, lr=0.05),
        all=with_torch(adopt, lr=0.05, betas=(0.8, 0.95), eps=1e-2, clip_lambda=None),
        decoupled=with_torch(adopt, lr=0.05, weight_decay=0.1, decouple=True),
        decoupled_all=with_torch(adopt, lr=0.05, betas=(0.8, 0.95), eps=1e-2, clip_lambda=None, weight_decay=0.3,
                                 decouple=True))  # fmt: skip
    ademamix = released("apple/ml-ademamix", "pytorch/ademamix.py").AdEMAMix
    add("AdEMAMix", default=with_torch(ademamix, lr=0.02),
        all=with_torch(ademamix, lr=0.02, betas=(0.8, 0.95, 0.99), alpha=4.0, beta3_warmup=15, alpha_warmup=15,
                       eps=1e-3, weight_decay=0.1))  # fmt: skip
    adan = released("sail-sg/Adan", "adan.py").Adan
    add("Adan", default=with_torch(adan, lr=0.02),
        all=with_torch(adan, lr=0.05, betas=(0.9, 0.8, 0.95), eps=1e-3, weight_decay=0.1),
        no_prox=with_torch(adan, lr=0.05, weight_decay=0.1, no_prox=True),
        clipped=with_torch(adan, lr=0.05, eps=1e-3, weight_decay=0.1, max_grad_norm=0.5))  # fmt: skip
    lion = released("google/automl", "lion/lion_pytorch.py").Lion
    add("Lion", default=with_torch(lion, lr=0.02),
        all=with_torch(lion, lr=0.01, betas=(0.8, 0.95), weight_decay=0.3))  # fmt: skip
    jasper = "PyTorch/SpeechRecognition/Jasper/common/optimizers.py"
    novograd = released("NVIDIA/DeepLearningExamples", jasper).Novograd
    add("NovoGrad", default=with_torch(novograd, lr=0.02),
        all=with_torch(novograd, lr=0.02, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.1))  # fmt: skip
    cocob = package("bremen79/parameterfree", "", "parameterfree").COCOB
    add("COCOB", default=with_torch(cocob), all=with_torch(cocob, alpha=10, eps=1e-2, weight_decay=0.1))
    dowg = package("rka97/dowg", "", "dowg").DoWG
    add("DoWG", default=with_torch(dowg), all=with_torch(dowg, eps=1e-2))
    fromage = released("jxbz/fromage", "fromage.py").Fromage
    add("Fromage", default=with_torch(fromage), all=with_torch(fromage, lr=0.1))


def sophia() -> None:
    """The squares of sampled gradients stand in for the estimate of Gauss, Newton and Bartlett."""
    cls = released("Liuhong99/Sophia", "sophia.py").SophiaG

    def loop(interval: int, scale: float, late: bool = False, **hyperparameters: Any) -> Loop:
        def estimate(params: dict[str, Any], optimizer: Any, t: int) -> None:
            for n, p in params.items():
                p.grad = torch.tensor(SAMPLED[n][t])
            optimizer.update_hessian()

        def run() -> Iterator[Params]:
            params = parameters()
            optimizer = cls(list(params.values()), **hyperparameters)
            for t in range(STEPS):
                if t % interval == 0 and not (late and t == 0):
                    estimate(params, optimizer, t)
                set_gradients(params, t)
                optimizer.step(bs=scale)
                yield values(params)

        return run

    add("Sophia", default=loop(10, 2500.0, lr=0.02, weight_decay=0.0),
        all=loop(3, 100.0, lr=0.05, betas=(0.8, 0.9), rho=0.05, weight_decay=0.1),
        late=loop(10, 2500.0, late=True, lr=0.02, weight_decay=0.0))  # fmt: skip


def sam() -> None:
    cls = released("davda54/sam", "sam.py").SAM

    def loop(base: Any, **hyperparameters: Any) -> Loop:
        def run() -> Iterator[Params]:
            params = parameters()
            optimizer = cls(list(params.values()), base, **hyperparameters)
            for t in range(STEPS):
                set_gradients(params, t)
                optimizer.first_step()
                set_gradients(params, t)
                optimizer.second_step()
                yield values(params)

        return run

    add("SAM", default=loop(torch.optim.SGD, lr=0.1), all=loop(torch.optim.AdamW, rho=0.3, lr=0.05, weight_decay=0.1),
        adaptive=loop(torch.optim.SGD, rho=2.0, adaptive=True, lr=0.1))  # fmt: skip


def muon() -> None:
    """Its iteration runs in bfloat16; the cast is lifted."""
    cls = released("KellerJordan/Muon", "muon.py").SingleDeviceMuonWithAuxAdam

    def make(matrices: dict[str, Any], others: dict[str, Any]) -> Callable[[Any], Any]:
        def build(params: dict[str, Any]) -> Any:
            groups = [
                {"params": [params["matrix"]], "use_muon": True, **matrices},
                {"params": [params["vector"]], "use_muon": False, **others},
            ]
            return cls(groups)

        return build

    def lifted(loop: Loop) -> Loop:
        def run() -> Iterator[Params]:
            cast, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, lambda x: x
            try:
                yield from loop()
            finally:
                torch.Tensor.bfloat16 = cast

        return run

    default = make({"lr": 0.05}, {"lr": 0.05, "eps": 1e-7})
    others = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.2}
    both = make({"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1}, others)
    add("Muon", default=lifted(torch_loop(default, True)), all=lifted(torch_loop(both, True)),
        bfloat16=torch_loop(default, True))  # fmt: skip


def galore() -> None:
    """Its singular vectors are computed in float32; the cast is lifted."""
    adamw = galore_adamw()

    def loop(rank: int, gap: int, scale: float, **hyperparameters: Any) -> Loop:
        def run() -> Iterator[Params]:
            projected = {"rank": rank, "update_proj_gap": gap, "scale": scale, "proj_type": "std"}

            def build(params: dict[str, Any]) -> Any:
                groups = [{"params": [params["matrix"]], **projected}, {"params": [params["vector"]]}]
                return adamw(groups, no_deprecation_warning=True, **hyperparameters)

            cast, torch.Tensor.float = torch.Tensor.float, lambda x: x
            try:
                yield from torch_loop(build, True)()
            finally:
                torch.Tensor.float = cast

        return run

    add("GaLore", default=loop(1, 200, 1.0, lr=0.05, eps=0.0),
        all=loop(1, 7, 0.25, lr=0.1, betas=(0.0, 0.95), eps=0.0),
        signs=loop(1, 7, 0.25, lr=0.1, betas=(0.8, 0.95), eps=0.0),
        eps_and_decay=loop(1, 200, 1.0, lr=0.05, weight_decay=0.1))  # fmt: skip


def galore_adamw() -> Any:
    """AdamW of GaLore; its package imports others, some of which need a GPU."""
    for name in ("transformers", "transformers.utils"):
        stub(name)
    stub("transformers.utils.versions", require_version=lambda version: None)
    stub("tensorly", set_backend=lambda name: None)
    stub("tensorly.decomposition", tucker=None)
    stub("tensorly.tenalg", tenalg=None)
    stub("galore_torch", __path__=[str(CHECKOUTS / "jiaweizzhao+GaLore/galore_torch")])
    return importlib.import_module("galore_torch.adamw").AdamW


def clipping() -> None:
    """SGD after clips whose bound follows the norms. The 1e-6 that both add to the norm before dividing is lifted."""
    stable = functools.partial(importlib.import_module("optimi").StableAdamW, foreach=False, triton=False)
    add("StableAdamW", default=with_torch(stable, lr=0.05, eps=1e-8, weight_decay=0.0),
        all=with_torch(stable, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.0),
        decay=with_torch(stable, lr=0.05, eps=1e-8, weight_decay=0.1))  # fmt: skip

    class Norm(float):
        """A norm to which nothing is added."""

        def __add__(self, other: Any) -> float:
            return float(self)

    def with_clip(rate: float, start: Callable[[Any], Callable[[], Any]]) -> Loop:
        def run() -> Iterator[Params]:
            params = parameters()
            optimizer = torch.optim.SGD(list(params.values()), lr=rate)
            clip = start(types.SimpleNamespace(parameters=lambda: iter(params.values()), modules=lambda: ()))
            for t in range(STEPS):
                set_gradients(params, t)
                clip()
                optimizer.step()
                yield values(params)

        return run

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

    def loop(make: Callable[[], Any], knows_norm: bool) -> Loop:
        def run() -> Iterator[Params]:
            params, transform = dict(START), make()
            state = transform.init(params)
            for t in range(STEPS):
                grads = {n: gradient(n, w, NOISE[n][t]) for n, w in params.items()}
                extra = {"loss": loss(params, {n: noise[t] for n, noise in NOISE.items()})}
                if not knows_norm:
                    extra["grad_norm"] = optax.global_norm(grads)
                updates, state = transform.update(grads, state, params, **extra)
                params = {n: w + np.asarray(updates[n]) for n, w in params.items()}
                yield params

        return run

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
    add("SkipSpikes", default=loop(lambda: skipping(sgd(), 8, 1.5), False),
        all=loop(lambda: skipping(optax.sgd(0.02, 0.8), 5, 0.5), False),
        levanter=loop(lambda: config(8, 1.5).wrap(sgd()), True))  # fmt: skip


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

    def loop(make: Callable[[], Any]) -> Loop:
        def run() -> Iterator[Params]:
            params = {n: tf.Variable(w, dtype=tf.float64) for n, w in START.items()}
            optimizer = make()
            for t in range(STEPS):
                grads = [tf.constant(gradient(n, w.numpy(), NOISE[n][t])) for n, w in params.items()]
                optimizer.apply_gradients(zip(grads, params.values(), strict=True))
                yield {n: w.numpy().copy() for n, w in params.items()}

        return run

    lamb = released("tensorflow/addons", "tensorflow_addons/optimizers/lamb.py").LAMB
    add("LAMB", default=loop(lambda: lamb(wide(0.05), wide(0.9), wide(0.999))),
        all=loop(lambda: lamb(wide(0.1), wide(0.8), wide(0.95), 1e-3, wide(0.1))))  # fmt: skip
    yogi = released("tensorflow/addons", "tensorflow_addons/optimizers/yogi.py").Yogi
    add("Yogi", default=loop(lambda: yogi(wide(0.05), wide(0.9), wide(0.999), wide(1e-3))),
        all=loop(lambda: yogi(wide(0.1), wide(0.8), wide(0.95), wide(1e-2))))  # fmt: skip
    sm3 = released("google-research/google-research", "sm3/sm3.py")
    sm3.tf.zeros = functools.partial(tf.zeros, dtype=tf.float64)
    add("SM3", default=loop(lambda: sm3.SM3Optimizer(np.float64(0.1), np.float64(0.9))),
        all=loop(lambda: sm3.SM3Optimizer(np.float64(0.3), np.float64(0.5))))  # fmt: skip


def main() -> None:
    for family in (torch_optimizers, torch_averages, authors_packages, authors_repositories, sophia, sam, muon, galore,
                   clipping, spikes, tensorflow_optimizers):  # fmt: skip
        family()
    frozen = {}
    for name, loop in CASES.items():
        points = list(loop())
        for array in START:
            frozen[f"{name}/{array}"] = np.stack([p[array] for p in points])
        moved = max(np.max(np.abs(points[-1][array] - START[array])) for array in START)
        print(f"{name:30} {len(points)} steps, moved by {moved:.3g}")
        assert len(points) == STEPS
        assert np.all(np.isfinite([np.sum(p[a]) for p in points for a in START]))
    np.savez_compressed(FROZEN, **frozen)
    for folder in sorted(CHECKOUTS.iterdir()):
        commit = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
        print(folder.name, commit.stdout.strip() or "no checkout")


if __name__ == "__main__":
    main()

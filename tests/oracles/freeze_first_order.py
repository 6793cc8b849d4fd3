"""Run the authors' released code of first-order optimizers and freeze its trajectories in `first_order.npz`.

    python tests/oracles/freeze_first_order.py CHECKOUTS

See README.md. Nothing of the released code is copied: the script imports its modules and calls them.
"""

import functools
import importlib
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

loops: Any = importlib.import_module("loops")  # its neighbours; the package around them needs JAX
frameworks: Any = importlib.import_module("first_order_frameworks")
problem = loops.problem
add, every, part, torch_case = loops.add, loops.every, loops.part, loops.torch_case
released, package, stub, torch = loops.released, loops.package, loops.stub, loops.torch
Case, Layout, DRAWS, PLAIN, SMALL = loops.Case, loops.Layout, loops.DRAWS, loops.PLAIN, loops.SMALL
STEPS, cosine = problem.STEPS, problem.cosine
TIMM = ("huggingface/pytorch-image-models", "timm/optim")
Arrays = dict[str, np.ndarray]
Params = dict[str, Any]


# --- Variance reduction and caution -----------------------------------------------------------------


def mars() -> None:
    cls = released("AGI-Arena/MARS", "MARS/optimizers/mars.py").MARS
    timm = part(*TIMM, "mars").Mars
    exact = functools.partial(every, cls, step=loops.exact_step(PLAIN), is_approx=False)
    more = {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "gamma": 0.2, "optimize_1d": True}
    vectors = {"lr_1d": 0.02, "betas_1d": (0.7, 0.8), "weight_decay_1d": 0.3}
    add("MARS", default=every(cls, lr=0.05, lr_1d=0.05), all=every(cls, lr=0.1, **more),
        vectors=every(cls, lr=0.1, **(more | vectors | {"optimize_1d": False})),
        amsgrad=every(cls, lr=0.1, amsgrad=True, **more),
        exact=exact(lr=0.05, lr_1d=0.05), exact_all=exact(lr=0.1, **more),
        timm=every(timm, lr=0.05), timm_all=every(timm, lr=0.1, **more))  # fmt: skip
    lion = {"mars_type": "mars-lion"}
    add("MARSLion", default=every(cls, lr=0.02, lr_1d=0.02, **lion), all=every(cls, lr=0.03, **more, **lion),
        exact=exact(lr=0.02, lr_1d=0.02, **lion), exact_all=exact(lr=0.03, **more, **lion))  # fmt: skip


class Function:
    """An optimizer of a function that updates arrays in place; it is given scalars as tensors."""

    def __init__(self, params: Params, function: Any, moments: int, **hyperparameters: Any) -> None:
        self.params, self.function, self.count = params, function, 0
        self.eps = {"epsilon": hyperparameters.pop("eps")} if "eps" in hyperparameters else {}
        self.scalars = {name: torch.tensor(value) for name, value in hyperparameters.items()}
        self.state = {n: [torch.zeros_like(p.data) for _ in range(moments)] for n, p in params.items()}

    def step(self) -> None:
        self.count += 1
        step = {"step": self.count} if self.eps else {}
        for n, p in self.params.items():
            self.function(p.data, p.grad, *self.state[n], **self.scalars, **self.eps, **step, cautious_wd=True)


def cautious() -> None:
    adamw = part("kyleliang919/C-Optim", "", "c_adamw").AdamW
    adamw = functools.partial(adamw, no_deprecation_warning=True)
    for name in ("transformers", "transformers.utils"):
        stub(name)
    stub("transformers.utils.versions", require_version=lambda version: None)
    paper = released("kyleliang919/C-Optim@3106e07", "c_adamw.py").AdamW
    paper = functools.partial(paper, no_deprecation_warning=True)
    more = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    add("CautiousAdamW", default=every(adamw, lr=0.05), all=every(adamw, **more),
        loop=every(adamw, foreach=False, lr=0.05), loop_all=every(adamw, foreach=False, **more),
        loop_uncorrected=every(adamw, foreach=False, correct_bias=False, **more),
        count_plus_one=every(paper, lr=0.05), count_plus_one_all=every(paper, **more))  # fmt: skip
    lion = released("kyleliang919/C-Optim", "c_lion.py").Lion
    timm = part(*TIMM, "lion").Lion
    timm = functools.partial(timm, caution=True)
    more = {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.3}
    add("CautiousLion", default=every(lion, lr=0.02), all=every(lion, **more),
        mean=every(timm, lr=0.02), mean_all=every(timm, **more))  # fmt: skip
    dion = released("microsoft/dion", "dion/scalar_opts.py")

    def function(name: str, moments: int, **hyperparameters: Any) -> Any:
        return torch_case(lambda params: Function(params, getattr(dion, name), moments, **hyperparameters))

    more = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9}
    add("CautiousDecayAdamW",
        default=function("adamw_update", 2, lr=0.05, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        all=function("adamw_update", 2, **more, eps=1e-3, weight_decay=0.4))  # fmt: skip
    add("CautiousDecayLion",
        default=function("lion_update", 1, lr=0.02, beta1=0.9, beta2=0.95, weight_decay=0.1),
        all=function("lion_update", 1, **(more | {"lr": 0.03}), weight_decay=0.4))  # fmt: skip
    grams = part("Gunale0926/Grams", "grams/src", "grams").Grams
    more = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    add("Grams", default=every(grams, lr=0.05), all=every(grams, **more),
        uncorrected=every(grams, correct_bias=False, **more))  # fmt: skip


# --- Filters and averages of gradients --------------------------------------------------------------


class Filtered:
    """A filter of the gradients before an optimizer."""

    def __init__(self, params: Params, function: Any, base: Any, **settings: Any) -> None:
        self.model = types.SimpleNamespace(named_parameters=params.items)
        self.filter = functools.partial(function, self.model, **settings)
        self.optimizer, self.grads = base(list(params.values())), None

    def step(self) -> None:
        self.grads = self.filter(grads=self.grads)
        self.optimizer.step()


def grokfast() -> None:
    module = released("ironjr/grokfast", "grokfast.py")
    sgd = functools.partial(torch.optim.SGD, lr=0.05)
    adamw = functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1)

    def case(function: str, base: Any, **settings: Any) -> Any:
        return torch_case(lambda params: Filtered(params, getattr(module, function), base, **settings))

    ema, ma = "gradfilter_ema", "gradfilter_ma"
    add("GrokFastEMA", default=case(ema, sgd), all=case(ema, sgd, alpha=0.8, lamb=0.5), adamw=case(ema, adamw),
        adamw_all=case(ema, adamw, alpha=0.8, lamb=0.5))  # fmt: skip
    summed = {"window_size": 4, "lamb": 0.3, "filter_type": "sum", "warmup": False}
    add("GrokFastMA", default=case(ma, sgd, window_size=10), all=case(ma, sgd, **summed),
        adamw=case(ma, adamw, window_size=10), adamw_all=case(ma, adamw, **summed))  # fmt: skip


def momentum() -> None:
    laprop = released("Z-T-WANG/LaProp-Optimizer", "laprop.py").LaProp
    more = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.01}
    add("LaProp", default=every(laprop, lr=0.02), all=every(laprop, lr=0.1, amsgrad=True, **more),
        decay=every(laprop, lr=0.1, **more), centered=every(laprop, lr=0.02, centered=True),
        centered_all=every(laprop, lr=0.1, amsgrad=True, centered=True, **more),
        scheduled=every(laprop, rate=functools.partial(cosine, 0.1), lr=0.1, **more),
        timm=every(part(*TIMM, "laprop").LaProp, rate=functools.partial(cosine, 0.1),
                   **(more | {"weight_decay": 0.3})))  # fmt: skip
    qh = package("facebookresearch/qhoptim", "", "qhoptim.pyt")
    add("QHM", default=every(qh.QHM, lr=0.2, momentum=0.9, nu=0.7),
        all=every(qh.QHM, lr=0.3, momentum=0.8, nu=0.4, weight_decay=0.1),
        decoupled=every(qh.QHM, lr=0.3, momentum=0.8, nu=0.4, weight_decay=0.1,
                        weight_decay_type="direct"))  # fmt: skip
    more = {"lr": 0.1, "nus": (0.6, 0.8), "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    add("QHAdam", default=every(qh.QHAdam, lr=0.05),
        recommended=every(qh.QHAdam, lr=0.05, nus=(0.7, 1.0), betas=(0.995, 0.999)),
        all=every(qh.QHAdam, **more), decoupled=every(qh.QHAdam, decouple_weight_decay=True, **more))  # fmt: skip
    aggmo = released("AtheMathmo/AggMo", "aggmo.py").AggMo
    add("AggMo", default=every(aggmo, lr=0.05), all=every(aggmo, lr=0.1, betas=[0.3, 0.7], weight_decay=0.1),
        exponential=every(aggmo.from_exp_form, lr=0.1, a=0.3, k=4, weight_decay=0.1))  # fmt: skip
    adamw = functools.partial(part(*TIMM, "adamw").AdamWLegacy, corrected_weight_decay=True)
    more = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3}
    slow, falling = functools.partial(cosine, 0.05), functools.partial(cosine, 0.1)
    add("AdamC", default=every(adamw, rate=slow, lr=0.05), all=every(adamw, rate=falling, **more),
        amsgrad=every(adamw, rate=falling, amsgrad=True, **more),
        cautious=every(adamw, rate=falling, caution=True, **more))  # fmt: skip

    def average(optimizer: Any, params: Params) -> Params:
        return {n: optimizer.state[p]["ax"] for n, p in params.items()}

    asgd = torch.optim.ASGD
    more = {"lr": 0.2, "lambd": 0.1, "alpha": 0.6, "t0": 10, "weight_decay": 0.2}
    add("ASGD", default=every(asgd, lr=0.05), all=every(asgd, **more),
        averaged=every(asgd, lr=0.05, t0=0, read=average),
        averaged_all=every(asgd, **more, read=average))  # fmt: skip


# --- Fewer moments ----------------------------------------------------------------------------------


def few_moments() -> None:
    came = released("yangluo7/CAME", "came_pytorch/CAME.py").CAME
    more = {"lr": 0.05, "eps": (1e-3, 1e-2), "clip_threshold": 0.5, "betas": (0.8, 0.95, 0.9), "weight_decay": 0.1}
    add("CAME", default=every(came, lr=0.02), all=every(came, **more),
        convolution=torch_case(lambda params: came(list(params.values()), **more), Layout(problem.CONVOLUTION)),
        )  # fmt: skip
    focus = released("liuyz0/FOCUS", "focus.py").FOCUS
    power = 1 - 2.0**-10  # with it the first debiased average is exactly the parameters, so that its sign is zero
    add("FOCUS", default=every(focus, lr=0.02, betas=(0.9, power)),
        all=every(focus, lr=0.05, betas=(0.8, 0.875), gamma=0.4, weight_decay=0.1))  # fmt: skip
    mini = released("zyushun/Adam-mini", "adam_mini/adam_mini.py").Adam_mini
    layers = Layout(problem.LAYERS, ("wq", "wk", "wv", "wo", "mlp", "other", "output"))

    def adam_mini(**hyperparameters: Any) -> Any:
        def build(params: Params) -> Any:
            return mini(params.items(), verbose=False, **hyperparameters)

        return torch_case(build, layers)

    add("AdamMini", default=adam_mini(lr=0.05, dim=4, n_heads=2),
        all=adam_mini(lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2, dim=4, n_heads=4, n_kv_heads=2),
        )  # fmt: skip


def apollo() -> None:
    """Its random projections come from a table: of the smaller side, for each array and each refresh."""
    module = part("zhuhanqing/APOLLO", "apollo_torch", "apollo")
    projector: Any = importlib.import_module("apollo_torch.random_projector")
    names = ("tall", "wide", "square")
    normal = np.random.default_rng(11).standard_normal
    DRAWS.update({f"Apollo/{n}": normal((6, min(problem.MATRICES.start[n].shape), 3)) for n in names})

    def stable_randn(shape: tuple[int, int], seed: int, **options: Any) -> Any:
        refresh, place = divmod(seed, 10)
        name = names[place - 1]  # matrices come first, and are counted from 1
        table = DRAWS[f"Apollo/{name}"][refresh]
        return torch.tensor(table[:, : shape[1]] if name == "tall" else table[:, : shape[0]].T)

    projector.stable_randn = stable_randn
    projector.next_seed = lambda seed: seed + 10

    def case(rank: int, groups: dict[str, Any], **hyperparameters: Any) -> Any:
        settings = {"rank": rank, "update_proj_gap": 200, "scale": 1.0, "proj": "random", "proj_type": "std",
                    "scale_type": "channel"} | groups  # fmt: skip

        def build(params: Params) -> Any:
            matrices = {"params": [params[n] for n in names], **settings}
            return module.AdamW([matrices, {"params": [params["vector"]]}], **hyperparameters)

        return torch_case(build, Layout(problem.MATRICES, names))

    more = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    some = {"update_proj_gap": 9, "scale": 4.0}
    add("Apollo", default=case(2, {}, lr=0.05), all=case(3, some, **more),
        front=case(3, some, scale_front=True, **more), unlimited=case(2, some, disable_nl=True, **more),
        uncorrected=case(2, some, correct_bias=False, **more), tensor=case(2, some | {"scale_type": "tensor"}, **more),
        svd=case(2, {"proj": "svd"}, **more))  # fmt: skip
    tensor = {"scale_type": "tensor", "scale": 128.0}
    add("ApolloMini", default=case(1, tensor, lr=0.01), all=case(1, tensor | some, scale_front=True, **more))


# --- Second-order estimates -------------------------------------------------------------------------


def sophia() -> None:
    """Squares of fixed sampled gradients stand in for the estimate, which is made after every k-th step."""
    cls = released("Liuhong99/Sophia", "sophia.py").SophiaG

    def case(k: int, scale: float, **hyperparameters: Any) -> Any:
        def step(optimizer: Any, params: Params, t: int) -> None:
            optimizer.step(bs=scale)
            if (t + 1) % k == 0 and t + 1 < STEPS:
                for n, p in params.items():
                    p.grad = torch.tensor(problem.SAMPLED[n][t + 1])
                optimizer.update_hessian()

        return every(cls, step=step, **hyperparameters)

    add("SophiaG", default=case(10, 2500.0, lr=0.02),
        all=case(3, 100.0, lr=0.05, betas=(0.8, 0.9), rho=0.05, weight_decay=0.3))  # fmt: skip


def adahessian() -> None:
    """Its Rademacher vectors come from a table."""
    signs = np.random.default_rng(13).integers(0, 2, (STEPS, 64)) * 2.0 - 1
    DRAWS["AdaHessian"] = signs

    def randint_like(layout: Any, t: int) -> Any:
        sizes = [w.size for w in layout.problem.start.values()]
        drawn = zip(layout.problem.start.items(), np.split(signs[t], np.cumsum(sizes)), strict=False)
        turned = (layout.turned(n, row.reshape(w.shape)) for (n, w), row in drawn)
        return lambda p, high, **options: torch.tensor((next(turned) + 1) / 2)

    def case(cls: Any, the_problem: Any, linear: tuple[str, ...] = (), **hyperparameters: Any) -> Any:
        layout = Layout(the_problem, linear)

        def run(start: Arrays) -> Iterator[Arrays]:
            params = layout.parameters(start)
            optimizer = cls(list(params.values()), **hyperparameters)
            tensors = problem.Problem(*({n: torch.tensor(w) for n, w in part.items()} for part in the_problem))
            made = torch.randint_like
            for t in range(STEPS):
                for p in params.values():
                    p.grad = None
                ours = {n: p.T if n in linear else p for n, p in params.items()}
                noise = {n: w[t] for n, w in tensors.noise.items()}
                with warnings.catch_warnings(action="ignore"):  # the graph holds itself
                    problem.coupled_loss(tensors, ours, noise).backward(create_graph=True)
                torch.randint_like = randint_like(layout, t)
                try:
                    optimizer.step()
                finally:
                    torch.randint_like = made
                yield layout.arrays(params)

        return Case(the_problem.start, run)

    images = released("amirgholami/adahessian", "image_classification/optim_adahessian.py").Adahessian
    more = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.1, "hessian_power": 0.5}
    blocks = released("amirgholami/adahessian", "instruction/adahessian.py").Adahessian
    add("AdaHessian", default=case(images, SMALL), all=case(images, SMALL, **more),
        convolution=case(images, problem.CONVOLUTION, **more), rows=case(blocks, SMALL, ("matrix",), **more),
        blocks=case(blocks, problem.CONVOLUTION, **more, spatial_average_block_size=(3, 3, -1, 4)),
        )  # fmt: skip


# --- Averages of parameters -------------------------------------------------------------------------


def averages() -> None:
    module = package("facebookresearch/optimizers", "", "gpa.gpa_adamw")
    module.torch = types.SimpleNamespace(**{**vars(torch), "float32": torch.float64})
    gpa, kind = module.GPAAdamW, importlib.import_module("gpa.gpa_types").IterateAveragingType
    more = {"lr": 0.1, "eps": 1e-3, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.2, "train_interp_coeff": 0.9,
            "eval_interp_coeff": 0.8}  # fmt: skip
    free = {"iterate_averaging_type": kind.SCHEDULE_FREE, "weight_pow_coeff": 1.0, "weight_lr_power": 1.5}
    falling, rising = functools.partial(cosine, 0.1), functools.partial(problem.warm_up, 0.1)
    add("GPAAdamW", default=every(gpa, lr=0.05), all=every(gpa, use_wd_on_y=True, **more),
        decay=every(gpa, rate=falling, **more), evaluated=every(gpa, **more, read=loops.evaluated),
        schedule_free=every(gpa, rate=rising, **more, **free),
        schedule_free_evaluated=every(gpa, rate=rising, **more, **free, read=loops.evaluated))  # fmt: skip
    add("DiLoCo", default=diloco(1, 8, {"lr": 0.05, "weight_decay": 0.1, "betas": (0.9, 0.95)}, 0.7, 0.9),
        all=diloco(1, 5, {"lr": 0.1, "weight_decay": 0.2, "betas": (0.8, 0.95), "eps": 1e-3}, 0.4, 0.6),
        workers=diloco(2, 8, {"lr": 0.05, "weight_decay": 0.1, "betas": (0.9, 0.95)}, 0.7, 0.9))  # fmt: skip


def diloco(workers: int, every_steps: int, inner: dict[str, Any], rate: float, decay: float) -> Any:
    """The loop of open_diloco/train_diloco_torch.py, which cannot be imported, on AdamW and SGD of PyTorch.

    With several workers, an array has an axis of workers after that of the steps.
    """

    def run(start: Arrays) -> Iterator[Arrays]:
        replicas = [PLAIN.parameters(start) for _ in range(workers)]
        inners = [torch.optim.AdamW(list(params.values()), **inner) for params in replicas]
        outers = [torch.optim.SGD(list(p.values()), lr=rate, momentum=decay, nesterov=True) for p in replicas]
        old = PLAIN.arrays(replicas[0])
        for t in range(STEPS):
            for k, (params, optimizer) in enumerate(zip(replicas, inners, strict=True)):
                PLAIN.set_gradients(params, t, k)
                optimizer.step()
            if (t + 1) % every_steps == 0:
                moved = {n: np.mean([w - PLAIN.arrays(params)[n] for params in replicas], 0) for n, w in old.items()}
                for params, outer in zip(replicas, outers, strict=True):
                    for n, p in params.items():
                        p.grad, p.data = torch.tensor(moved[n]), torch.tensor(old[n].copy())
                    outer.step()
                old = PLAIN.arrays(replicas[0])
            points = [PLAIN.arrays(params) for params in replicas]
            yield points[0] if workers == 1 else {n: np.stack([p[n] for p in points]) for n in old}

    return Case(SMALL.start, run)


# --- All --------------------------------------------------------------------------------------------


def main() -> None:
    warnings.filterwarnings("ignore", message="This overload of")
    torch.compile = loops.uncompiled
    torch.Tensor.float = lambda x: x
    families = [mars, cautious, grokfast, momentum, few_moments, apollo, sophia, adahessian, averages,
                *(frameworks.ftrl, frameworks.amos, frameworks.tiger)]  # fmt: skip
    for family in families:
        family()
    loops.write("first_order", {f"draws/{name}": table for name, table in DRAWS.items()})


if __name__ == "__main__":
    main()

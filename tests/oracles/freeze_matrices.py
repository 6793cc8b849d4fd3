"""Run the released code of optimizers of matrices and freeze its trajectories in `matrices.npz`; see README.md.

python tests/oracles/freeze_matrices.py CHECKOUTS
"""

import functools
import importlib
import logging
import types
from collections.abc import Callable
from typing import Any

import numpy as np

loops: Any = importlib.import_module("loops")  # its neighbour; the package around it needs JAX
add, released, package, torch = loops.add, loops.released, loops.package, loops.torch
STEPS, TWO_LAYERS = loops.STEPS, loops.problem.TWO_LAYERS
VECTORS, MATRICES = ("b1", "b2"), ("w1", "w2")
Params = dict[str, Any]


# --- Float64 ----------------------------------------------------------------------------------------


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes float64 where it is asked for float32 or bfloat16, and nothing on another device."""
    narrow = (torch.float32, torch.bfloat16)

    def wide(argument: Any) -> Any:
        return torch.float64 if isinstance(argument, torch.dtype) and argument in narrow else argument

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        return function(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})

    return call


def lift_casts() -> None:
    torch.compile = loops.uncompiled
    torch.Tensor.bfloat16 = torch.Tensor.clone
    torch.Tensor.float = lambda x: x
    torch.Tensor.to = widened(torch.Tensor.to)
    torch.empty = widened(torch.empty)


# --- The loop ---------------------------------------------------------------------------------------


def draw_tables() -> dict[str, dict[str, np.ndarray]]:
    """Standard normal numbers: Kron's for every step, Dion's once."""
    normal = np.random.default_rng(7).standard_normal
    kron = {name: normal((STEPS, *w.shape)) for name, w in TWO_LAYERS.start.items()}
    return {"Kron": kron, "Dion": {name: normal(TWO_LAYERS.start[name].shape) for name in MATRICES}}


DRAWS = draw_tables()


def draw_from(draws: str, layout: Any, t: int) -> None:
    """Random numbers of this step, for the arrays in the order in which the code asks."""
    names = iter(DRAWS[draws])

    def for_kron(like: Any) -> Any:
        name = next(names)
        return torch.tensor(layout.turned(name, DRAWS["Kron"][name][t]).copy()).reshape(like.shape)

    def for_dion(size: tuple[int, int], **options: Any) -> Any:
        rows, columns = size
        return torch.tensor(DRAWS["Dion"][next(names)][:rows, :columns].copy())

    torch.randn_like, torch.randn = for_kron, for_dion


def case_of(build: Callable[[Params], Any], is_tall: bool = False, is_exact: bool = False, draws: str = "") -> Any:
    """A case of the two layers.

    Args:
        build: makes the optimizer.
        is_tall: whether the code gets the matrices as they are, in place of their transposes.
        is_exact: whether it gets the gradient of the next step's noise, too, as the training script of MARS does.
        draws: the table from which random numbers come.
    """
    layout = loops.Layout(TWO_LAYERS, () if is_tall else MATRICES)
    step_of_case = loops.exact_step(layout) if is_exact else loops.plain_step

    def step(optimizer: Any, params: Params, t: int) -> None:
        if draws:
            draw_from(draws, layout, t)
        step_of_case(optimizer, params, t)

    return loops.torch_case(build, layout, step=step)


def every(cls: Callable[..., Any], is_tall: bool = False, is_exact: bool = False, draws: str = "", **more: Any) -> Any:
    """One group of all arrays."""
    return case_of(lambda params: cls(list(params.values()), **more), is_tall, is_exact, draws)


def split(params: Params) -> tuple[list[Any], list[Any]]:
    return [params[name] for name in MATRICES], [params[name] for name in VECTORS]


def groups(
    cls: Callable[..., Any], matrices: Any, vectors: Any, is_tall: bool = False, draws: str = "", **rest: Any
) -> Any:
    """A group of the matrices and one of the vectors, whose settings the groups hold."""

    def build(params: Params) -> Any:
        first, second = split(params)
        return cls([{"params": first} | matrices, {"params": second} | vectors], **rest)

    return case_of(build, is_tall, draws=draws)


def beside_adamw(cls: Callable[..., Any], is_tall: bool = False, **hyperparameters: Any) -> Any:
    """A class for matrices alone; the vectors are AdamW's."""

    def build(params: Params) -> Any:
        matrices, vectors = split(params)
        pair = (cls(matrices, **hyperparameters), torch.optim.AdamW(vectors, lr=0.05))
        return types.SimpleNamespace(step=lambda: [optimizer.step() for optimizer in pair])

    return case_of(build, is_tall)


# --- SOAP and Shampoo -------------------------------------------------------------------------------


def soap() -> None:
    cls = released("nikhilvyas/SOAP", "soap.py").SOAP
    add(
        "SOAP",
        default=every(cls, lr=0.05),
        all=every(
            cls, lr=0.1, betas=(0.8, 0.9), shampoo_beta=0.7, eps=1e-3, weight_decay=0.1, precondition_frequency=3,
            normalize_grads=True, correct_bias=False,
        ),
        some=every(cls, lr=0.02, betas=(0.9, 0.99), weight_decay=0.0, precondition_frequency=1, max_precond_dim=4),
    )  # fmt: skip


def shampoo() -> None:
    module = package("facebookresearch/optimizers", "", "distributed_shampoo")
    settings: Any = importlib.import_module("distributed_shampoo.shampoo_types")
    functions = importlib.import_module("distributed_shampoo.preconditioner.matrix_functions_types")
    wide = {"factor_matrix_dtype": torch.float64}
    roots = wide | {"inv_factor_matrix_dtype": torch.float64}
    bases = wide | {"factor_matrix_eigenvectors_dtype": torch.float64, "corrected_eigenvalues_dtype": torch.float64}
    bases |= {"ignored_basis_change_dims": {1: [0]}}  # of a vector's first outer product all but one are arbitrary

    def case(config: Any, dimensionality: int = 2, **hyperparameters: Any) -> Any:
        separate = settings.SingleDeviceDistributedConfig(target_parameter_dimensionality=dimensionality)
        return every(
            module.DistributedShampoo, preconditioner_config=config, distributed_config=separate, **hyperparameters
        )

    shampoo = functools.partial(settings.RootInvShampooPreconditionerConfig, **roots)
    kl = functools.partial(settings.RootInvKLShampooPreconditionerConfig, **roots)
    soap = functools.partial(settings.EigenvalueCorrectedShampooPreconditionerConfig, **bases)
    decay = settings.WeightDecayType
    adam, adagrad = settings.AdamPreconditionerConfig, settings.AdaGradPreconditionerConfig
    rmsprop, sgd = settings.RMSpropPreconditionerConfig, settings.SGDPreconditionerConfig
    grafted = {
        "lr": 0.1, "betas": (0.8, 0.95), "beta3": 0.7, "epsilon": 1e-4, "weight_decay": 0.1,
        "precondition_frequency": 3, "start_preconditioning_step": 5,
        "grafting_config": adam(beta2=0.9, epsilon=1e-3),
    }  # fmt: skip
    newton = functions.CoupledNewtonConfig()
    add(
        "Shampoo",
        default=case(shampoo(), lr=0.1, epsilon=1e-8),
        all=case(shampoo(), **grafted, max_preconditioner_dim=1000),
        average=case(shampoo(), lr=0.1, betas=(0.9, 0.99), epsilon=1e-6, use_bias_correction=False),
        blocks=case(shampoo(), lr=0.1, betas=(0.9, 0.95), epsilon=1e-2, max_preconditioner_dim=3),
        merged=case(shampoo(), 1, lr=0.1, betas=(0.9, 0.95), epsilon=1e-2),
        exponents=case(
            shampoo(inverse_exponent_override={1: 0.25, 2: {0: 0.5, 1: 0.0}}), lr=0.1, betas=(0.0, 0.95), epsilon=1e-3
        ),
        newton=case(shampoo(amortized_computation_config=newton), lr=0.1, betas=(0.9, 0.95), epsilon=1e-2),
        graft_sgd=case(shampoo(), lr=0.05, betas=(0.9, 0.95), epsilon=1e-6, grafting_config=sgd()),
        graft_blocks=case(
            shampoo(), lr=0.05, betas=(0.9, 0.95), epsilon=1e-2, max_preconditioner_dim=3, grafting_config=sgd()
        ),
        graft_blocks_all=case(shampoo(), **grafted, max_preconditioner_dim=2),
        graft_adagrad=case(shampoo(), lr=0.1, epsilon=1e-6, grafting_config=adagrad(epsilon=1e-3)),
        graft_rmsprop=case(
            shampoo(), lr=0.05, betas=(0.9, 0.9), epsilon=1e-6, weight_decay=0.1, weight_decay_type=decay.L2,
            precondition_frequency=4, grafting_config=rmsprop(beta2=0.9, epsilon=1e-3),
        ),
    )  # fmt: skip
    add(
        "KLShampoo",
        default=case(kl(), lr=0.1, epsilon=1e-4),
        all=case(kl(), **grafted),
        paper=case(kl(inverse_exponent_override={2: 0.5}), lr=0.05, betas=(0.9, 0.95), epsilon=1e-4),
    )
    qr = functions.QREigendecompositionConfig
    add(
        "SOAP.meta",
        default=case(soap(), lr=0.05, betas=(0.9, 0.95), epsilon=1e-3),
        all=case(soap(), **(grafted | {"grafting_config": None, "epsilon": 1e-3})),
        qr=case(soap(amortized_computation_config=qr()), lr=0.05, betas=(0.9, 0.95), epsilon=1e-4),
        qr_thrice=case(
            soap(amortized_computation_config=qr(max_iterations=3, tolerance=1e-3)), lr=0.05, betas=(0.9, 0.95),
            epsilon=1e-6, precondition_frequency=3,
        ),
    )  # fmt: skip


def kron() -> None:
    module = package("evanatyourservice/kron_torch", "", "kron_torch.kron")
    module.print = lambda *sizes: None
    case = functools.partial(every, module.Kron, draws="Kron", precond_dtype=torch.float64)
    falling = module.precond_update_prob_schedule(max_prob=0.9, min_prob=0.2, decay=0.1, flat_start=6)
    add(
        "Kron",
        default=case(lr=0.02),
        all=case(
            lr=0.05, b1=0.8, weight_decay=0.1, preconditioner_update_probability=0.5, max_size_triangular=4,
            min_ndim_triangular=1, momentum_into_precond_update=False, precond_lr=0.3, precond_init_scale=0.5,
        ),
        one_diagonal=case(lr=0.05, weight_decay=0.3, precond_lr=0.2, memory_save_mode="one_diag"),
        larger_diagonal=case(lr=0.05, memory_save_mode="smart_one_diag", precond_init_scale=2.0),
        diagonal=case(lr=0.05, memory_save_mode="all_diag"),
        schedule=case(lr=0.05, preconditioner_update_probability=falling),
        vectors=case(lr=0.05, min_ndim_triangular=3, preconditioner_update_probability=0.3),
    )  # fmt: skip


# --- Newton-Schulz ----------------------------------------------------------------------------------

ADAM = {"lr": 0.05, "eps": 1e-7}
ADAM_ALL = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.2}


def of_keller_jordan(name: str, repository: str, file: str, cls: str, **all_of_them: Any) -> None:
    """Three classes with the same arguments of groups."""
    both = functools.partial(groups, getattr(released(repository, file), cls))
    muon, adam = {"use_muon": True}, {"use_muon": False}
    everything = muon | {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1} | all_of_them
    add(
        name,
        default=both(muon | {"lr": 0.05}, adam | ADAM),
        all=both(everything, adam | ADAM_ALL),
        tall=both(muon | {"lr": 0.02, "weight_decay": 0.3}, adam | ADAM, True),
    )


def muon() -> None:
    cls = "SingleDeviceMuonWithAuxAdam"
    of_keller_jordan("Muon", "KellerJordan/Muon", "muon.py", cls)
    of_keller_jordan("CautiousMuon", "kyleliang919/C-Optim", "c_muon.py", cls)
    of_keller_jordan("NorMuon", "zichongli5/NorMuon", "normuon.py", "SingleDeviceNorMuonWithAuxAdam", beta2=0.9)


def dion() -> None:
    """Its optimizers; Dion's default of QR is a random one, which differs from `qr` by the signs of columns alone."""
    module = package("microsoft/dion", "", "dion")
    adamw = {"algorithm": "adamw", "lr": 0.05}
    adamw_all = adamw | {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.2}
    reference = functools.partial(groups, module.MuonReference)
    some: dict[str, Any] = {"lr": 0.1, "mu": 0.8, "weight_decay": 0.2, "epsilon": 1e-3}
    add(
        "Muon.reference",
        default=reference({}, adamw, lr=0.05),
        all=reference({}, adamw | {"betas": (0.8, 0.9)}, ns_steps=4, nesterov=False, adjust_lr="rms_norm", **some),
        tall=reference({}, adamw, True, lr=0.05),
        unadjusted=reference({}, adamw, adjust_lr=None, lr=0.05),
    )
    rows: dict[str, Any] = {"muon_beta2": 0.9}
    for name, cls, more in (("Muon.dion", module.Muon, {}), ("NorMuon.dion", module.NorMuon, rows)):
        case = functools.partial(groups, cls)
        everything = some | more | {"nesterov": True, "adjust_lr": "rms_norm", "use_polar_express": False}
        add(
            name,
            default=case({}, adamw, lr=0.05),
            all=case({}, adamw_all | {"cautious_wd": False}, cautious_wd=True, **everything),
            tall=case({}, adamw | {"cautious_wd": True}, True, lr=0.02, weight_decay=0.3),
            unadjusted=case({}, adamw, lr=0.05, adjust_lr=None),
        )
    simple = functools.partial(groups, module.DionSimple, draws="Dion")
    add(
        "Dion",
        default=simple({}, adamw, lr=0.05),
        all=simple({}, adamw_all, lr=0.1, mu=0.8, weight_decay=0.1, rank=2, epsilon=1e-3),
        tall=simple({}, adamw, True, lr=0.05, rank=1),
    )
    full = functools.partial(groups, module.DionReference, draws="Dion", qr_method="qr")
    add(
        "Dion.reference",
        default=full({}, adamw, lr=0.05),
        all=full(
            {}, adamw_all, lr=0.1, mu=0.8, weight_decay=0.1, rank_fraction=0.3, rank_multiple_of=2, epsilon=1e-3,
            power_iters=2,
        ),
        tall=full({}, adamw, True, lr=0.05, rank_fraction=0.5),
    )  # fmt: skip


def adamuon() -> None:
    module = released("Chongjie-Si/AdaMuon", "gpt2/models/optimizers/adamuon.py")

    def gather(into: Any, update: Any, async_op: bool) -> Any:
        into.copy_(update.view_as(into))
        return types.SimpleNamespace(wait=lambda: None)

    module.dist = types.SimpleNamespace(all_gather_into_tensor=gather)
    case = functools.partial(beside_adamw, module.AdaMuon, rank=0, world_size=1)
    everything = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.8, "nesterov": False, "ns_steps": 4, "eps": 1e-3}
    add("AdaMuon", default=case(lr=0.05), all=case(**everything), tall=case(True, lr=0.05, momentum=0.9))


def muon_of_torch() -> None:
    case = functools.partial(beside_adamw, torch.optim.Muon)
    everything = {
        "lr": 0.1, "weight_decay": 0.3, "momentum": 0.8, "nesterov": False, "ns_coefficients": (3.0, -3.2, 1.2),
        "eps": 1e-3, "ns_steps": 4, "adjust_lr_fn": "match_rms_adamw",
    }  # fmt: skip
    add("Muon.torch", default=case(lr=0.05), all=case(**everything), tall=case(True, lr=0.05))


def timm_package() -> None:
    """Its `Muon`, without the package around it, which imports models."""
    module = loops.part("huggingface/pytorch-image-models", "timm/optim", "muon")
    TABLES.update({f"timm/{name}": table for name, table in module._COEFFICIENTS.items()})

    def case(is_tall: bool = False, **hyperparameters: Any) -> Any:
        return groups(module.Muon, {"use_muon": True}, {"use_fallback": True}, is_tall, **hyperparameters)

    some = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.8, "nesterov": True, "betas": (0.8, 0.9)}
    safe = {"lr": 0.1, "weight_decay": 0.1, "safety_factor": 1.02, "ns_coefficients": "polar_express_safer"}
    add(
        "Muon.timm",
        default=case(lr=0.05),
        all=case(
            **some, ns_steps=8, ns_coefficients="polar_express", eps=1e-3, safety_factor=1.01, adjust_lr_fn="original",
            fallback_lr_scale=0.5,
        ),
        original=case(lr=0.05, ns_coefficients="original", adjust_lr_fn=None),
        truncated=case(**safe, adjust_lr_fn="rms_to_rms"),
        repeated=case(lr=0.05, ns_steps=7),
        scaled_eps=case(lr=0.05, scale_eps=True, eps=0.1),
        tall=case(True, lr=0.05, adjust_lr_fn="original"),
        scaled_eps_tall=case(True, lr=0.05, scale_eps=True, eps=0.1, adjust_lr_fn="rms_to_rms"),
    )  # fmt: skip
    add(
        "AdaMuon.timm",
        default=case(lr=0.05, algo="adamuon"),
        all=case(**some, algo="adamuon", ns_steps=4, eps=1e-3, adjust_lr_fn="rms_to_rms"),
        tall=case(True, **safe, algo="adamuon", adjust_lr_fn="rsqrt_in"),
    )


def scion() -> None:
    cls = released("LIONS-EPFL/scion", "scion.py").Scion

    def case(norm: str, is_tall: bool = False, *, bias: Any = None, more: Any = None, **hyperparameters: Any) -> Any:
        matrices = {"norm": norm, "norm_kwargs": more or {}} | hyperparameters
        return groups(cls, matrices, {"norm": "BiasRMS", "lr": 0.05} | (bias or {}), is_tall)

    free = {"momentum": 0.3, "scale": 2.0, "unconstrained": True}
    add(
        "Scion",
        default=every(cls, lr=0.05),
        all=case("Spectral", bias=free, more={"max": True, "normalized": False, "steps": 4}, lr=0.05, **free),
        spectral_tall=case("Spectral", True, lr=0.05, momentum=0.1),
        spectral_max=case("Spectral", more={"max": True}, lr=0.05, momentum=0.1),
        spectral_input=case("Spectral", more={"normalized": False}, lr=0.05, momentum=0.1, scale=0.5),
        sign=case("Sign", lr=0.05, momentum=0.1, scale=3.0),
        sign_input=case("Sign", more={"normalized": False}, lr=0.02, **free),
        columns=case("ColNorm", lr=0.05, momentum=0.1),
        columns_output=case("ColNorm", more={"normalized": True}, lr=0.05, **free),
        columns_embedding=case("ColNorm", more={"transpose": True}, lr=0.05, momentum=0.5),
        rows=case("RowNorm", lr=0.05, momentum=0.1),
        rows_input=case("RowNorm", more={"normalized": False}, lr=0.05, **free),
        rows_embedding=case("RowNorm", more={"transpose": True}, lr=0.05, momentum=0.5),
    )


def mars() -> None:
    cls = functools.partial(released("AGI-Arena/MARS", "MARS/optimizers/mars.py").MARS, mars_type="mars-shampoo")
    everything = {
        "lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "gamma": 0.1, "lr_1d": 0.05,
        "betas_1d": (0.85, 0.9), "weight_decay_1d": 0.2,
    }  # fmt: skip
    add(
        "MARS.shampoo",
        default=every(cls, lr=0.05),
        all=every(cls, **everything),
        all_mars=every(cls, **everything, optimize_1d=True),
        exact=every(cls, is_exact=True, lr=0.05, is_approx=False),
        tall=every(cls, True, lr=0.02, weight_decay=0.3),
    )
    matrix = released("AGI-Arena/MARS", "MARS_M/optimizers/mars_m.py").MARS_M
    light = released("AGI-Arena/MARS", "MARS_M/optimizers/mars_m_efficient.py").MARS_M_Efficient

    def case(cls: Any = matrix, is_tall: bool = False, is_exact: bool = False, **hyperparameters: Any) -> Any:
        def build(params: Params) -> Any:
            matrices, vectors = split(params)
            return cls(muon_params=matrices, adamw_params=vectors, **hyperparameters)

        return case_of(build, is_tall, is_exact)

    some = {"lr": 0.1, "wd": 0.2, "momentum": 0.8, "ns_steps": 4, "adamw_betas": (0.8, 0.9), "adamw_eps": 1e-3}
    add(
        "MARSM",
        default=case(lr=0.05),
        all=case(**some, gamma=0.1, clip_c=True),
        exact=case(is_exact=True, lr=0.05, is_approx=False),
        tall=case(is_tall=True, lr=0.05, gamma=0.05),
        efficient=case(light, lr=0.05),
        efficient_all=case(light, **some, gamma=0.1),
    )


# --- The file ---------------------------------------------------------------------------------------

TABLES: dict[str, Any] = {}


def main() -> None:
    logging.disable(logging.WARNING)
    lift_casts()
    for family in (soap, shampoo, kron, muon, dion, adamuon, muon_of_torch, timm_package, scion, mars):
        family()
    TABLES["dion/polar_express"] = importlib.import_module("dion.polar_express")._POLAR_EXPRESS_COEFFS
    more = {f"draws/{k}/{n}": w for k, table in DRAWS.items() for n, w in table.items()}
    loops.write("matrices", more | {f"coefficients/{name}": np.array(table) for name, table in TABLES.items()})


if __name__ == "__main__":
    main()

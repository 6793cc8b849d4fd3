"""Run the authors' released code of optimizers of matrices and freeze its trajectories in `matrices.npz`; see README.md.

    python tests/oracles/freeze_matrices.py CHECKOUTS
"""

import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

freeze: Any = importlib.import_module("freeze")  # its neighbours; the package around them needs JAX
problem: Any = importlib.import_module("matrix_problem")
released, package, torch = freeze.released, freeze.package, freeze.torch
NOISE, SHAPES, START, STEPS, gradient = problem.NOISE, problem.SHAPES, problem.START, problem.STEPS, problem.gradient
FROZEN = Path(__file__).with_name("matrices.npz")
FLOOR = 1e-11
MOVED = 1e-15
VECTORS, MATRICES = ("b1", "b2"), ("w1", "w2")

Params = dict[str, Any]
Build = Callable[[Params], Any]


class Case(NamedTuple):
    """An optimizer of PyTorch, made from parameters of PyTorch.

    Attributes:
        build: the optimizer.
        is_tall: whether the code gets the matrices as they are, in place of their transposes.
        before: what is to be done before a step, given the optimizer, the parameters and the step.
        draws: the table from which random numbers come.
    """

    build: Build
    is_tall: bool = False
    before: Callable[[Any, Params, int], None] | None = None
    draws: str = ""


CASES: dict[str, Case] = {}


def add(name: str, **settings: Case) -> None:
    CASES.update({f"{name}/{setting}": case for setting, case in settings.items()})


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
    torch.compile = lambda function=None, **options: (lambda f: f) if function is None else function
    torch.Tensor.bfloat16 = torch.Tensor.clone
    torch.Tensor.float = lambda x: x
    torch.Tensor.to = widened(torch.Tensor.to)
    torch.empty = widened(torch.empty)


# --- The loop ---------------------------------------------------------------------------------------


def draw_tables() -> dict[str, dict[str, np.ndarray]]:
    """Standard normal numbers: Kron's for every step, Dion's once."""
    normal = np.random.default_rng(7).standard_normal
    kron = {name: normal((STEPS, *shape)) for name, shape in SHAPES.items()}
    return {"Kron": kron, "Dion": {name: normal(SHAPES[name]) for name in MATRICES}}


DRAWS = draw_tables()


def theirs(w: np.ndarray, is_tall: bool) -> Any:
    return torch.tensor(w if is_tall else w.T.copy())


def ours(params: Params, is_tall: bool) -> dict[str, np.ndarray]:
    arrays = {name: p.detach().numpy().copy() for name, p in params.items()}
    return {name: w if is_tall else w.T for name, w in arrays.items()}


def set_gradients(params: Params, is_tall: bool, t: int) -> None:
    for name, w in ours(params, is_tall).items():
        params[name].grad = theirs(gradient(name, w, NOISE[name][t]), is_tall)


def draw_from(case: Case, t: int) -> None:
    """Random numbers of this step, for the arrays in the order in which the code asks."""
    names = iter(DRAWS[case.draws])

    def for_kron(like: Any) -> Any:
        return theirs(DRAWS["Kron"][next(names)][t], case.is_tall).reshape(like.shape)

    def for_dion(size: tuple[int, int], **options: Any) -> Any:
        rows, columns = size
        return torch.tensor(DRAWS["Dion"][next(names)][:rows, :columns].copy())

    torch.randn_like, torch.randn = for_kron, for_dion


def trajectory(case: Case, start: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    params = {name: torch.nn.Parameter(theirs(w, case.is_tall)) for name, w in start.items()}
    optimizer = case.build(params)
    for t in range(STEPS):
        if case.draws:
            draw_from(case, t)
        if case.before:
            case.before(optimizer, params, t)
        set_gradients(params, case.is_tall, t)
        optimizer.step()
        yield ours(params, case.is_tall)


def stacked(case: Case, moved: float = 0.0) -> dict[str, np.ndarray]:
    """The parameters after each step, from a start that is moved."""
    start = {name: w + moved * (-1.0) ** np.arange(w.size).reshape(w.shape) for name, w in START.items()}
    points = list(trajectory(case, start))
    return {name: np.stack([p[name] for p in points]) for name in START}


def distance(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """The largest distance, as a fraction of the largest entry of the array."""
    return max(float(np.max(np.abs(first[n] - second[n])) / np.max(np.abs(first[n]))) for n in first)


def every(cls: Callable[..., Any], is_tall: bool = False, **hyperparameters: Any) -> Case:
    """One group of all arrays."""
    return Case(lambda params: cls(list(params.values()), **hyperparameters), is_tall)


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
    types = importlib.import_module("distributed_shampoo.shampoo_types")
    functions = importlib.import_module("distributed_shampoo.preconditioner.matrix_functions_types")
    wide = {"factor_matrix_dtype": torch.float64}
    roots = wide | {"inv_factor_matrix_dtype": torch.float64}
    bases = wide | {"factor_matrix_eigenvectors_dtype": torch.float64, "corrected_eigenvalues_dtype": torch.float64}
    bases |= {"ignored_basis_change_dims": {1: [0]}}  # of a vector's first outer product all but one are arbitrary

    def case(config: Any, dimensionality: int = 2, **hyperparameters: Any) -> Case:
        separate = types.SingleDeviceDistributedConfig(target_parameter_dimensionality=dimensionality)
        return every(
            module.DistributedShampoo, preconditioner_config=config, distributed_config=separate, **hyperparameters
        )

    shampoo = functools.partial(types.RootInvShampooPreconditionerConfig, **roots)
    kl = functools.partial(types.RootInvKLShampooPreconditionerConfig, **roots)
    soap = functools.partial(types.EigenvalueCorrectedShampooPreconditionerConfig, **bases)
    decay = types.WeightDecayType
    adam, adagrad = types.AdamPreconditionerConfig, types.AdaGradPreconditionerConfig
    rmsprop, sgd = types.RMSpropPreconditionerConfig, types.SGDPreconditionerConfig
    grafted = {
        "lr": 0.1, "betas": (0.8, 0.95), "beta3": 0.7, "epsilon": 1e-4, "weight_decay": 0.1, "precondition_frequency": 3,
        "start_preconditioning_step": 5, "grafting_config": adam(beta2=0.9, epsilon=1e-3),
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


def main() -> None:
    logging.disable(logging.WARNING)
    lift_casts()
    for family in (soap, shampoo):
        family()
    frozen: dict[str, Any] = {f"draws/{k}/{n}": w for k, table in DRAWS.items() for n, w in table.items()}
    failed = []
    for name, case in CASES.items():
        points = stacked(case)
        floor = max(distance(points, stacked(case, moved)) for moved in (MOVED, -MOVED, 3 * MOVED))
        travelled = max(float(np.max(np.abs(points[n][-1] - START[n]))) for n in START)
        print(f"{name:30} moved by {travelled:.3g}, floor {floor:.1e}", flush=True)
        if not floor <= FLOOR:
            failed.append(name)
        frozen |= {f"{name}/{n}": w for n, w in points.items()} | {f"floor/{name}": np.array(floor)}
    np.savez_compressed(FROZEN, **frozen)
    print(len(CASES), "cases, above the floor:", failed)


if __name__ == "__main__":
    main()

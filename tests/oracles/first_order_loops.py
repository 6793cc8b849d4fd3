"""The loops of `freeze_first_order.py`: a case, the loop of PyTorch, and the distance between two runs."""

import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

freeze: Any = importlib.import_module("freeze")  # its neighbours; the package around them needs JAX
small: Any = importlib.import_module("problem")
problem: Any = importlib.import_module("first_order_problem")
torch, stub, CHECKOUTS, STEPS = freeze.torch, freeze.stub, freeze.CHECKOUTS, problem.STEPS
SMALL = problem.Problem(small.START, small.CURVATURE, small.MINIMUM, small.NOISE)

Arrays = dict[str, np.ndarray]
Params = dict[str, Any]


class Case(NamedTuple):
    """The arrays after each step, from a start."""

    start: Arrays
    run: Callable[[Arrays], Iterator[Arrays]]


CASES: dict[str, Case] = {}
DRAWS: dict[str, np.ndarray] = {}


def add(name: str, **settings: Case) -> None:
    CASES.update({f"{name}/{setting}": case for setting, case in settings.items()})


# --- The loop of PyTorch ----------------------------------------------------------------------------


class Layout(NamedTuple):
    """A problem, and the names of the arrays that PyTorch has transposed."""

    problem: Any
    linear: tuple[str, ...] = ()

    def parameters(self, start: Arrays) -> Params:
        return {n: torch.nn.Parameter(torch.tensor(self.turned(n, w).copy())) for n, w in start.items()}

    def turned(self, name: str, w: np.ndarray) -> np.ndarray:
        return w.T if name in self.linear else w

    def arrays(self, params: Params) -> Arrays:
        return {n: self.turned(n, p.detach().numpy().copy()) for n, p in params.items()}

    def set_gradients(self, params: Params, t: int, worker: int = 0) -> None:
        for n, w in self.arrays(params).items():
            noise = problem.noise_of_worker(self.problem.noise[n], worker, t)
            params[n].grad = torch.tensor(self.turned(n, self.problem.gradient(n, w, noise)).copy())


PLAIN = Layout(SMALL)
Read = Callable[[Any, Params], Params]


def torch_case(
    build: Callable[[Params], Any],
    layout: Layout = PLAIN,
    rate: Callable[[int], float] | None = None,
    read: Read | None = None,
) -> Case:
    """A case of PyTorch.

    Args:
        build: makes the optimizer.
        layout: the problem.
        rate: the learning rate of each step, which takes the place of the optimizer's.
        read: what is frozen, given the optimizer and the parameters; by default the parameters.
    """

    def run(start: Arrays) -> Iterator[Arrays]:
        params = layout.parameters(start)
        optimizer = build(params)
        getattr(optimizer, "train", lambda: None)()
        for t in range(STEPS):
            for group in optimizer.param_groups if rate else ():
                group["lr"] = rate(t) if rate else None
            layout.set_gradients(params, t)
            optimizer.step()
            yield layout.arrays(read(optimizer, params) if read else params)

    return Case(layout.problem.start, run)


def every(
    cls: Callable[..., Any], *, rate: Callable[[int], float] | None = None, read: Read | None = None,
    **hyperparameters: Any,
) -> Case:  # fmt: skip
    """One group of all arrays of the small problem."""
    return torch_case(lambda params: cls(list(params.values()), **hyperparameters), rate=rate, read=read)


def widened(module: Any) -> Any:
    """A module whose float32 is float64."""
    module.torch = types.SimpleNamespace(**{**vars(torch), "float32": torch.float64})
    return module


def part(repository: str, folder: str, name: str) -> Any:
    """A module of a package, without the rest of the package."""
    alias = folder.rpartition("/")[2].replace("-", "_") or repository.rpartition("/")[2].replace("-", "_")
    stub(alias, __path__=[str(CHECKOUTS / repository.replace("/", "+") / folder)])
    return importlib.import_module(f"{alias}.{name}")


# --- Floors -----------------------------------------------------------------------------------------


def stacked(case: Case, moved: float = 0.0) -> Arrays:
    """The arrays after each step, from a start that is moved."""
    start = {n: w + moved * (-1.0) ** np.arange(w.size).reshape(w.shape) for n, w in case.start.items()}
    points = list(case.run(start))
    return {n: np.stack([p[n] for p in points]) for n in start}


def distance(first: Arrays, second: Arrays) -> float:
    """The largest distance, as a fraction of the largest entry of the array."""
    return max(float(np.max(np.abs(first[n] - second[n])) / np.max(np.abs(first[n]))) for n in first)

"""What the scripts that freeze trajectories share: imports of released code, cases, the loop of PyTorch, the file."""

import importlib
import importlib.util
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CHECKOUTS = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
problem: Any = importlib.import_module("problem")  # its neighbour; the package around it needs JAX
SMALL, STEPS = problem.SMALL, problem.STEPS
torch: Any = importlib.import_module("torch")
torch.set_default_dtype(torch.float64)  # several of them make their scalars in the default dtype
FLOOR = 1e-11
MOVED = 1e-15

Arrays = dict[str, np.ndarray]
Params = dict[str, Any]


# --- Released code ----------------------------------------------------------------------------------


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


def part(repository: str, folder: str, name: str) -> Any:
    """A module of a package, without the rest of the package."""
    alias = folder.rpartition("/")[2].replace("-", "_") or repository.rpartition("/")[2].replace("-", "_")
    stub(alias, __path__=[str(CHECKOUTS / repository.replace("/", "+") / folder)])
    return importlib.import_module(f"{alias}.{name}")


def uncompiled(function: Any = None, **options: Any) -> Any:
    """`torch.compile`, which returns its function."""
    return (lambda f: f) if function is None else function


# --- Cases ------------------------------------------------------------------------------------------


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
Build = Callable[[Params], Any]
Read = Callable[[Any, Params], Params]
Step = Callable[[Any, Params, int], None]


def plain_step(optimizer: Any, params: Params, t: int) -> None:
    optimizer.step()


def exact_step(layout: Layout) -> Step:
    """A step of MARS with the gradient of the next batch, too; the calls are those of its training script."""

    def step(optimizer: Any, params: Params, t: int) -> None:
        layout.set_gradients(params, min(t + 1, STEPS - 1))
        optimizer.update_previous_grad()
        layout.set_gradients(params, t)
        optimizer.step()
        optimizer.update_last_grad()

    return step


def torch_case(
    build: Build,
    layout: Layout = PLAIN,
    rate: Callable[[int], float] | None = None,
    read: Read | None = None,
    step: Step = plain_step,
) -> Case:
    """A case of PyTorch.

    Args:
        build: makes the optimizer.
        layout: the problem.
        rate: the learning rate of each step, which takes the place of the optimizer's.
        read: what is frozen, given the optimizer and the parameters; by default the parameters.
        step: what is called in each step, once the gradients are set.
    """

    def run(start: Arrays) -> Iterator[Arrays]:
        params = layout.parameters(start)
        optimizer = build(params)
        getattr(optimizer, "train", lambda: None)()
        for t in range(STEPS):
            for group in optimizer.param_groups if rate else ():
                group["lr"] = rate(t) if rate else None
            layout.set_gradients(params, t)
            step(optimizer, params, t)
            yield layout.arrays(read(optimizer, params) if read else params)

    return Case(layout.problem.start, run)


def every(
    cls: Callable[..., Any], *, rate: Callable[[int], float] | None = None, read: Read | None = None,
    step: Step = plain_step, **hyperparameters: Any,
) -> Case:  # fmt: skip
    """One group of all arrays of the small problem."""
    return torch_case(lambda params: cls(list(params.values()), **hyperparameters), rate=rate, read=read, step=step)


def evaluated(optimizer: Any, params: Params) -> Params:
    """The evaluation parameters, in place of those that are trained."""
    optimizer.eval()
    points = {n: p.detach().clone() for n, p in params.items()}
    optimizer.train()
    return points


# --- The file ---------------------------------------------------------------------------------------


def stacked(case: Case, moved: float = 0.0) -> Arrays:
    """The arrays after each step, from a start that is moved."""
    start = {n: w + moved * (-1.0) ** np.arange(w.size).reshape(w.shape) for n, w in case.start.items()}
    points = list(case.run(start))
    return {n: np.stack([p[n] for p in points]) for n in start}


def distance(first: Arrays, second: Arrays) -> float:
    """The largest distance, as a fraction of the largest entry of the array."""
    return max(float(np.max(np.abs(first[n] - second[n])) / np.max(np.abs(first[n]))) for n in first)


def write(name: str, more: Arrays, has_floors: bool = True) -> None:
    """Run all cases and write their trajectories, beside other arrays, to `NAME.npz`."""
    frozen: dict[str, Any] = dict(more)
    failed = []
    for case_name, case in CASES.items():
        points = stacked(case)
        assert all(len(w) == STEPS and np.all(np.isfinite(w)) for w in points.values()), case_name
        frozen |= {f"{case_name}/{n}": w for n, w in points.items()}
        floor = 0.0
        if has_floors:
            floor = max(distance(points, stacked(case, moved)) for moved in (MOVED, -MOVED, 3 * MOVED))
            frozen[f"floor/{case_name}"] = np.array(floor)
        travelled = max(float(np.max(np.abs(points[n][-1] - case.start[n]))) for n in case.start)
        print(f"{case_name:40} moved by {travelled:.3g}, floor {floor:.1e}", flush=True)
        if not floor <= FLOOR:
            failed.append(case_name)
    np.savez_compressed(Path(__file__).with_name(f"{name}.npz"), **frozen)
    print(len(CASES), "cases; above the floor:", failed)
    for folder in sorted(CHECKOUTS.iterdir()):
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False)
        print(folder.name, commit.stdout.strip() or "no checkout")

"""Run the released code of the examples of docs/write_a_matrix_optimizer.md and freeze it in `examples.npz`.

python tests/oracles/freeze_examples.py CHECKOUTS
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

freeze_matrices: Any = importlib.import_module("freeze_matrices")  # its neighbour
loops = freeze_matrices.loops
torch = loops.torch

SHAPES = {"tall": (6, 3), "wide": (3, 6), "square": (4, 4)}  # outputs x inputs, as in PyTorch
STEPS = 4


def aurora() -> Callable[[Any, Any, dict[str, Any]], None]:
    """One step of Aurora, with the learning rate 1 and without weight decay, in float64."""
    freeze_matrices.lift_casts()
    module = loops.package("tilde-research/aurora-release", "src", "aurora")

    def step(w: Any, g: Any, state: dict[str, Any]) -> None:
        momentum = state.setdefault("momentum", torch.zeros_like(w))
        module.aurora(w, g, momentum, eta=1.0, weight_decay=0.0)

    return step


def asgo() -> Callable[[Any, Any, dict[str, Any]], None]:
    """One step of ASGO, with the learning rate 1 and without weight decay, with an exact inverse root."""
    for name in ("config", "einops", "optimizers.utils.utils"):
        loops.stub(name, rearrange=None)
    module = loops.package("infinity-stars/ASGO", "", "optimizers.asgo")

    def step(w: Any, g: Any, state: dict[str, Any]) -> None:
        if not state:
            exact = {"inv_method": "_matrix_inverse_root_svd", "weight_decay": 0.0}
            state["optimizer"] = module.asgo([w], learning_rate=1.0, **exact)
        w.grad = g
        state["optimizer"].step()

    return step


def main() -> None:
    found: dict[str, np.ndarray] = {}
    for algorithm, make in {"ASGO": asgo, "Aurora": aurora}.items():
        step = make()
        for shape, size in SHAPES.items():
            random = np.random.default_rng(0)
            gradients = random.standard_normal((STEPS, *size))
            w, state, rows = torch.zeros(size), {}, []
            for g in gradients:
                step(w, torch.tensor(g), state)
                rows.append(w.numpy().copy())
            found[f"gradients/{shape}"] = gradients
            found[f"{algorithm}/{shape}"] = np.stack(rows)
    np.savez_compressed(Path(__file__).with_name("examples.npz"), **found)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()

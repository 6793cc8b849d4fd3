"""Time the optimizers of matrices on the accelerator of this machine, and add a section to `DEVICES_MATRICES.md`.

    JAX_PLATFORMS=cuda python benchmarks/device_matrices.py

Needs modulax and optax beside a JAX for the accelerator. `--quick` times a model of two layers and writes nothing.
`--only WORD...` times the rows whose name contains one of the words. After `--limit` seconds, the rows that are left
are skipped. `--authors FOLDER` adds the released code of SOAP and Muon, whose repositories are the folders `soap` and
`muon` in it, with PyTorch on the same device.
"""

import argparse
import importlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from accelerator_rows import gpt2, hidden_matrices, total_size
from device_steps import compiled, drawn, each
from measure import seconds, step_of, table

import modulax as mx

FILE = Path(__file__).parent / "DEVICES_MATRICES.md"
HALF = jnp.bfloat16
EVERY = 100  # steps between two computations of the roots of Shampoo and its kin


class Optimizer(NamedTuple):
    """An optimizer, and the number of steps after which it decomposes or changes its factors again."""

    name: str
    transform: Any
    period: int = 1


ADAM: dict[str, Any] = {"adam_learning_rate": 1e-3}
OPTIMIZERS = (
    Optimizer("AdamW", mx.AdamW(1e-3)),
    Optimizer("Muon", mx.Muon(2e-2, **ADAM)),
    Optimizer("Muon, `dtype=bfloat16`", mx.Muon(2e-2, dtype=HALF, **ADAM)),
    Optimizer("optax's `muon`", optax.contrib.muon(2e-2, muon_weight_dimension_numbers=hidden_matrices)),
    Optimizer("NorMuon, `dtype=bfloat16`", mx.NorMuon(2e-2, dtype=HALF)),
    Optimizer("AdaMuon, `dtype=bfloat16`", mx.AdaMuon(2e-2, dtype=HALF)),
    Optimizer("MARSM, `dtype=bfloat16`", mx.MARSM(1e-3, dtype=HALF)),
    Optimizer("Scion, `dtype=bfloat16`", mx.Scion(2.0**-12, dtype=HALF)),
    Optimizer("Dion, `rank_fraction=0.25`", mx.Dion(1e-2, rank_fraction=0.25)),
    Optimizer("Kron, factors every 34 steps", mx.Kron(3e-4, preconditioner_update_probability=0.03), 34),
    Optimizer("SOAP", mx.SOAP(3e-3), 10),
    Optimizer("EShampoo", mx.EShampoo(3e-3), EVERY),
    Optimizer("Shampoo, `precondition_frequency=100`", mx.Shampoo(1e-3, precondition_frequency=EVERY), EVERY),
    Optimizer("KLShampoo, `precondition_frequency=100`", mx.KLShampoo(1e-3, precondition_frequency=EVERY), EVERY),
)


def _timed(run: Callable[[], Any], period: int, rounds: int) -> tuple[float, float]:
    """The median time of a step, and that of a step that decomposes.

    The first steps are not timed: the first one of all decomposes in another way.
    """
    for _ in range(max(3, min(period, 12))):
        run()
    usual, longest = [], []
    for _ in range(rounds):
        times = []
        for _ in range(max(period, 10)):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        usual.append(statistics.median(times))
        longest.append(max(times))
    return statistics.median(usual), statistics.median(longest)


def _line(optimizer: Optimizer, tree: Any, quick: bool) -> list[str]:
    library = mx if isinstance(optimizer.transform, mx.AbstractTransform) else optax
    step = step_of(optimizer.transform, library.apply_updates)
    run, temp, compiling = compiled(step, optimizer.transform, tree)
    period = optimizer.period
    usual, longest = _timed(lambda: jax.block_until_ready(run()), period, 1 if quick or period > 10 else 3)
    size = total_size(jax.eval_shape(lambda: drawn(tree)))
    jax.clear_caches()
    return [optimizer.name, *_times(usual, longest, period), f"{temp / size:.1f}", seconds(compiling)]


def _times(usual: float, longest: float, period: int) -> list[str]:
    if period == 1:
        return [seconds(usual), "", seconds(usual)]
    return [seconds(usual), seconds(longest), seconds(usual + (longest - usual) / period)]


def _authors(folder: Path, tree: Any, words: list[str], end: float) -> list[list[str]]:
    """The released code, with as many arrays of the same shapes. It is given no more than its defaults and periods."""
    sys.path[:0] = [str(folder / name) for name in ("soap", "muon")]
    torch: Any = importlib.import_module("torch")
    shapes = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, tuple))

    def soap(params: list[Any], hidden: list[Any], others: list[Any]) -> Any:
        return importlib.import_module("soap").SOAP(params)

    def muon(params: list[Any], hidden: list[Any], others: list[Any]) -> Any:
        groups = [{"params": hidden, "use_muon": True}, {"params": others, "use_muon": False}]
        return importlib.import_module("muon").SingleDeviceMuonWithAuxAdam(groups)

    makers = (
        Optimizer("PyTorch's `AdamW`", lambda params, *_: torch.optim.AdamW(params)),
        Optimizer("Muon of K. Jordan", muon),
        Optimizer("SOAP of its authors", soap, 10),
    )

    def line(released: Optimizer) -> list[str]:
        params = [torch.nn.Parameter(torch.randn(*shape, device="cuda")) for shape in shapes]
        for p in params:
            p.grad = torch.randn_like(p)
        hidden = [p for p in params if p.ndim == 2 and max(p.shape) < 10_000]
        optimizer = released.transform(params, hidden, [p for p in params if not any(p is h for h in hidden)])

        def run() -> None:
            optimizer.step()
            torch.cuda.synchronize()

        usual, longest = _timed(run, released.period, 3)
        torch.cuda.empty_cache()
        return [released.name, *_times(usual, longest, released.period), "", ""]

    return each(makers, line, words, end, len(HEAD))


INTRODUCTION = """\
# Matrices on a device

Times of a donated step in float32: the median of a period or more. A step that decomposes matrices, or moves the
factors of Kron, has a column of its own, and the mean is over a period. The gradient is the same in every step, and
each step is waited for. Temporary bytes are per parameter.
"""
HEAD = ["optimizer", "step", "decomposing", "mean", "temp", "trace and compile"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--authors", type=Path, metavar="FOLDER")
    parser.add_argument("--into", type=Path, default=FILE, metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore", mx.LikelyMistake)
    end = time.monotonic() + options.limit
    small = {f"layer{i}": {"up": (64, 256), "down": (256, 64), "bias": (64,)} for i in range(2)}
    tree = small if options.quick else gpt2(is_stacked=False)

    lines = each(OPTIMIZERS, lambda row: _line(row, tree, options.quick), options.only, end, len(HEAD))
    if options.authors:
        lines += _authors(options.authors, tree, options.only, end)
    if options.quick:
        return
    device, flags = jax.devices()[0].device_kind, os.environ.get("XLA_FLAGS")
    title = f"## GPT-2 with 148 arrays, {device}{f', `XLA_FLAGS={flags}`' if flags else ''}"
    versions = f"JAX {jax.__version__}, optax {optax.__version__}."
    before = options.into.read_text() if options.into.exists() else INTRODUCTION
    options.into.write_text(f"{before}\n{title}\n\n{versions}\n\n{table(HEAD, lines)}\n")


if __name__ == "__main__":
    main()

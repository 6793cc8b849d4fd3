"""Compile steps for TPU v5e and H100 without a device, and compare the bytes that they move with the ideal.

Writes `ACCELERATORS.md` next to this file, and fails if a row is over its bound. `--quick` compiles one large matrix
for one device of each kind, without optax, measures one time to compile, and writes nothing. `--only WORD...` compiles
the rows whose name contains one of the words, and prints their kernels.
"""

import argparse
import dataclasses
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from accelerator_pods import pods
from accelerator_rows import CONTAINERS, OF_MATRICES, OPTIMIZERS, Row, gpt2, total_size
from measure import step_of, table

import modulax
from modulax.planning._hlo import Traffic, traffic
from modulax.planning._topology import compiled_for, topology

FILE = Path(__file__).parent / "ACCELERATORS.md"
DEVICES = {"v5e": "v5e:1x1", "H100": "h100:1"}
LARGE = {"w": (8192, 8192)}


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a compiled step does, per parameter."""

    traffic: Traffic
    size: int
    temp_bytes: int
    code_bytes: int
    seconds: float  # of processor time, to trace and compile

    @property
    def moved(self) -> float:
        return self.traffic.bytes / self.size

    @property
    def temp(self) -> float:
        return self.temp_bytes / self.size

    def cells(self) -> list[str]:
        return [f"{self.moved:.1f}", f"{self.temp:.1f}", str(len(self.traffic.kernels))]


def compile_step(optimizer: Any, params: Any, device: str, extra: Any = ()) -> Figures:
    """Compile a donated step for one device, with arguments and results in the order in which JAX pairs buffers."""
    start = time.process_time()
    extra = dict(extra)

    def our_step(params: Any, state: Any, grads: Any) -> Any:
        return optimizer.step(grads, state, params, **extra)

    is_ours = isinstance(optimizer, modulax.AbstractTransform)
    step = our_step if is_ours else step_of(optimizer, optax.apply_updates, **extra)
    state = jax.eval_shape(optimizer.init, params)
    program = compiled_for(topology(DEVICES[device]), step, params, state, params, donate=2)
    memory = program.memory_analysis()
    return Figures(
        traffic(program.as_text()),
        total_size(params),
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        time.process_time() - start,
    )


def shapes(tree: Any, dtype: Any) -> Any:
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, dtype), tree, is_leaf=is_shape)


def is_asked(name: str, words: Sequence[str]) -> bool:
    """Whether the name contains one of the words, if there are any."""
    return not words or any(word.lower() in name.lower() for word in words)


@dataclasses.dataclass
class Checks:
    """Rows over their bounds."""

    words: Sequence[str]
    has_optax: bool = True
    failures: list[str] = dataclasses.field(default_factory=list)

    def rows(self, rows: Iterable[Row], tree: Any, device: str, *, is_bounded: bool = True) -> str:
        """The table of some transforms on one device."""
        lines = []
        for row in rows:
            if not is_asked(row.name, self.words):
                continue
            params = shapes(tree, row.dtype)
            ours, ideal = compile_step(row.transform, params, device, row.extra), row.ideal(params)
            has_optax = self.has_optax and row.optax is not None
            theirs = compile_step(row.optax, params, device, row.extra) if has_optax else None
            ratio = ours.moved / ideal
            if is_bounded and ratio > row.bounds.get(device, 1.05):
                self.failures.append(f"{row.name} on {device} moves {ours.moved:.1f} bytes, {ratio:.2f} of {ideal:.1f}")
            if is_bounded and ours.temp > row.temp.get(device, 0.1):
                self.failures.append(f"{row.name} on {device} needs {ours.temp:.1f} temporary bytes")
            of_optax = [""] * 3 if theirs is None else theirs.cells()
            lines.append([row.name, f"{ideal:.1f}", *ours.cells(), f"{ratio:.2f}", *of_optax])
            if self.words:
                show(row, device, ours)
        head = ["transform", "ideal", "bytes", "temp", "kernels", "ratio", "optax: bytes", "temp", "kernels"]
        return table(head, lines)


def show(row: Row, device: str, figures: Figures) -> None:
    """Print the kernels of a step, the largest first."""
    print(f"{row.name}, {device}: {figures.moved:.1f} bytes, {figures.temp:.1f} temporary, {figures.seconds:.1f} s")
    for kernel in sorted(figures.traffic.kernels, key=lambda k: -k.total)[:12]:
        print(f"  {kernel.total / figures.size:6.2f} {kernel.instruction.opcode} {', '.join(kernel.owners)}")


# The most time in units of `compile_product`: seconds of processor time differ by a factor of four between machines.
COMPILED = {"Dion": 20, "EShampoo": 20, "Kron": 20, "SOAP": 20, "Shampoo": 20}
QUICKLY_COMPILED = {"Kron": 5}  # with half as many rows


def compile_product() -> float:
    """The processor time in which a product of full precision compiles for one v5e."""
    start = time.process_time()
    x = jax.ShapeDtypeStruct((1024, 2048), "float32")
    compiled_for(topology(DEVICES["v5e"]), lambda x: jnp.matmul(x, x.T, precision="highest"), x)
    return time.process_time() - start


def compile_times(bounds: Mapping[str, float], rows: int, failures: list[str]) -> str:
    """The table of the time to compile a step on one square matrix with so many rows for one v5e."""
    lines = []
    unit = compile_product() if bounds else 0.0
    for name, most in bounds.items():
        seconds = compile_step(getattr(modulax, name)(1e-3), shapes({"w": (rows, rows)}, "float32"), "v5e").seconds
        if seconds > most * unit:
            failures.append(f"{name} on v5e compiles in {seconds:.0f} s, {seconds / unit:.1f} products, bound {most}")
        lines.append([f"`{name}`", f"{seconds:.0f} s", f"{seconds / unit:.1f}"])
    return table(["optimizer", "CPU time", "× one product"], lines)


def reasons(rows: Iterable[Row]) -> str:
    """Why some rows are above the ideal."""
    return "\n".join(f"* {row.name}: {row.why}." for row in rows if row.why)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    options = parser.parse_args()
    warnings.simplefilter("ignore", modulax.LikelyMistake)
    checks = Checks(options.only, has_optax=not options.quick)
    everything = (*OPTIMIZERS, *CONTAINERS)
    parts = [(f"One matrix on one {name}", checks.rows(everything, LARGE, name)) for name in DEVICES]
    asked = {name: most for name, most in COMPILED.items() if is_asked(name, options.only)}
    timed = (QUICKLY_COMPILED, 512) if options.quick else (asked, 1024)
    parts.append(("Compile times", compile_times(*timed, checks.failures)))
    if not options.quick:
        for name in DEVICES:
            parts += [
                (f"GPT-2 with stacked layers on one {name}", checks.rows(OF_MATRICES, gpt2(), name, is_bounded=False)),
                (
                    f"GPT-2 with 148 arrays on one {name}",
                    checks.rows(OF_MATRICES, gpt2(is_stacked=False), name, is_bounded=False),
                ),
            ]
        parts.append(("A model on many devices, per device", pods(options.only, checks.failures)))
    text = "\n\n".join(f"## {title}\n\n{lines}" for title, lines in parts)
    if options.only or options.quick:
        print(text)
    else:
        FILE.write_text(f"# Accelerators\n\n{INTRODUCTION}\n\n{text}\n\n## Above the ideal\n\n{reasons(everything)}\n")
    if checks.failures:
        sys.exit("\n".join(checks.failures))


INTRODUCTION = f"""\
Programs that the compilers of TPU and GPU made, without a device: bytes that the kernels of one step read and write in
the memory of the device, and temporary memory, per parameter. They are no times. The parameters are donated and lie in
the order of the results, as in `jax.jit(lambda params, state, grads: ..., donate_argnums=(0, 1))`. The ideal moves
each gradient, parameter and state once, and again where a norm has to be known first.

JAX {jax.__version__}, optax {optax.__version__}."""


if __name__ == "__main__":
    main()

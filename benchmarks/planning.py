"""Plans of large models on TPUs, for the page "Will it fit?". Needs `pip install "modulax[planning]"`, and no TPU.

Writes `PLANNING.md` next to this file. `--only WORD...` prints the cases whose name contains one of the words instead.
"""

import argparse
import dataclasses
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from measure import table

import modulax as mx
from modulax import planning
from modulax.planning._report import bytes_text, flops_text, seconds_text

FILE = Path(__file__).parent / "PLANNING.md"
VOCABULARY = 32768
HEAD = (
    "optimizer",
    "mesh",
    "parameters",
    "state",
    "temporary",
    "peak",
    "bytes moved, × ideal",
    "matrix products",
    "transfers",
    "time, at least",
)


def gpt(layers: int, width: int) -> dict[str, Any]:
    """The shapes of a GPT whose layers are stacked, as for `jax.lax.scan`, in float32."""

    def stack(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((layers, *dims), jnp.float32)

    return {
        "embedding": jax.ShapeDtypeStruct((VOCABULARY, width), jnp.float32),
        "layers": {
            "attention_in": stack(width, 3 * width),
            "attention_out": stack(width, width),
            "mlp_in": stack(width, 4 * width),
            "mlp_out": stack(4 * width, width),
            "norm": stack(2, width),
        },
        "head": jax.ShapeDtypeStruct((width, VOCABULARY), jnp.float32),
    }


MATRIX = mx.Hidden(fan_in=(1,), fan_out=(2,), batch=(0,))
ROLES = {
    "embedding": mx.Embedding(),
    "head": mx.Head(),
    "layers.attention_*": MATRIX,
    "layers.mlp_*": MATRIX,
    "layers.norm": mx.Gain(),
}


def over_both(path: str, x: jax.ShapeDtypeStruct) -> P:
    """FSDP over the rows, tensor parallelism over the columns."""
    is_matrix = not path.endswith("norm")
    return P(*[None] * (len(x.shape) - 2), "data", "model") if is_matrix else P()


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of a table."""

    name: str
    optimizer: mx.AbstractTransform
    params: Any
    topology: str
    mesh: dict[str, int]
    spec: Any = "data"

    def row(self) -> list[str]:
        mesh = planning.topology(self.topology, **self.mesh)
        plan = planning.plan(self.optimizer, self.params, mesh, spec=self.spec)
        axes = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        assert plan.memory_bytes is not None
        # The compiler of JAX 0.12 makes no program of what does not fit.
        moved = seconds = "not known"
        if plan.hbm_bytes is not None and plan.seconds is not None:
            moved = f"{bytes_text(plan.hbm_bytes)}, {plan.hbm_bytes / plan.ideal_bytes:.2f}"
            seconds = seconds_text(plan.seconds)
        over = "" if plan.fits else " (does not fit)"
        return [
            self.name,
            axes,
            bytes_text(plan.param_bytes),
            bytes_text(plan.state_bytes),
            bytes_text(plan.temp_bytes),
            f"{bytes_text(plan.peak_bytes)}, {plan.peak_bytes / plan.memory_bytes:.0%}{over}",
            moved,
            flops_text(plan.flops) or "none",
            bytes_text(sum(c.bytes for c in plan.collectives)) if plan.collectives else "none",
            seconds,
        ]


SMALL, MIDDLE, LARGE = gpt(24, 2048), gpt(32, 4096), gpt(80, 8192)
ADAMW = mx.AdamW(3e-4)
MUON = mx.Muon(2e-2, adam_learning_rate=3e-4, roles=ROLES)
CASES = {
    "7B on 16 chips": (
        Case("AdamW, all replicated", ADAMW, MIDDLE, "v5e:4x4", {"data": 16}, None),
        Case("AdamW, FSDP", ADAMW, MIDDLE, "v5e:4x4", {"data": 16}),
        Case("LowBit(AdamW), FSDP", mx.LowBit(ADAMW), MIDDLE, "v5e:4x4", {"data": 16}),
        Case("LowBit(AdamW, bits=4), FSDP", mx.LowBit(ADAMW, bits=4), MIDDLE, "v5e:4x4", {"data": 16}),
    ),
    "1B with Muon": (
        Case("AdamW, FSDP", ADAMW, SMALL, "v5e:4x4", {"data": 16}),
        Case("Muon, FSDP", MUON, SMALL, "v5e:4x4", {"data": 16}),
        Case("Muon in bfloat16, FSDP", MUON.replace(dtype=jnp.bfloat16), SMALL, "v5e:4x4", {"data": 16}),
        Case("Muon, FSDP", MUON, SMALL, "v5e:16x16", {"data": 256}),
        Case("Muon, FSDP and tensor parallelism", MUON, SMALL, "v5e:16x16", {"data": 32, "model": 8}, over_both),
    ),
    "70B on 512 chips": (
        Case("AdamW, FSDP", ADAMW, LARGE, "v5p:8x8x8", {"data": 512}),
        Case("Lion, FSDP", mx.Lion(1e-4), LARGE, "v5p:8x8x8", {"data": 512}),
    ),
}


def section(name: str, cases: Sequence[Case]) -> str:
    """A table, between the marks by which the page includes it."""
    return f"## {name}\n\n<!-- {name} -->\n\n{table(HEAD, [case.row() for case in cases])}\n\n<!-- end of {name} -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    words = parser.parse_args().only
    chosen = {name: cases for name, cases in CASES.items() if not words or any(word in name for word in words)}
    sections = [section(name, cases) for name, cases in chosen.items()]
    if words:
        print("\n\n".join(sections))
        return
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("jax", "libtpu"))
    sections += [f"Compiled by {versions}, on a CPU; written by `python benchmarks/planning.py`."]
    FILE.write_text("\n\n".join(["# Plans of large models", *sections]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

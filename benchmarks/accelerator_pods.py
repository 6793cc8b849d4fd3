"""Steps of a model of a billion parameters on many devices: their transfers, memory and matrix products."""

import collections
import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from accelerator_rows import ADAM
from measure import table
from planning import MUON, ROLES, SMALL, gpt, over_both

import modulax as mx
from modulax import planning
from modulax.planning import Plan

# Five steps of Newton and Schulz on all matrices of 24 layers of width 2048: 2048 x 6144, 2048 x 2048, 2048 x 8192 and
# its transpose. A product with the Gram matrix takes 2 n^2 m operations, the square of the Gram matrix 2 n^3.
NEWTON_SCHULZ = 24 * 5 * sum(4 * 2048**2 * m + 2 * 2048**3 for m in (6144, 2048, 8192, 8192))

# Layers of small GPTs for optimizers with decompositions: one of 1024 rows takes minutes to compile.
BLOCKS, WHOLE = {"layers": gpt(8, 256)["layers"]}, {"layers": gpt(32, 128)["layers"]}
MATRICES = mx.by_path({"layers.norm": None, "*": mx.MuonDimensionNumbers(-2, -1)})


@dataclasses.dataclass(frozen=True)
class Pod:
    """A step on a mesh, and the most that it may send, store and compute: gigabytes, MiB, and times its share.

    `work` is how many operations the devices share; None for those of the program for one device.
    """

    name: str
    optimizer: mx.AbstractTransform
    topology: str
    mesh: dict[str, int]
    sent: float
    temp: float
    share: float = 0.0
    spec: Any = "data"
    zero: str | None = None
    params: Any = dataclasses.field(default_factory=lambda: SMALL)
    work: float | None = NEWTON_SCHULZ

    def plan(self) -> Plan:
        mesh = planning.topology(self.topology, **self.mesh)
        return planning.plan(self.optimizer, self.params, mesh, spec=self.spec, zero=self.zero)

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def share_of_work(self) -> float:
        work = self.work
        if work is None:
            work = planning.plan(self.optimizer, self.params, planning.topology("v5e:1x1")).flops or 0.0
        return work / self.devices


SHAMPOO = mx.Shampoo(1e-3, b2=0.99, block_size=128, precondition_frequency=10, weight_dimension_numbers=MATRICES)
ESHAMPOO = mx.EShampoo(1e-3, block_size=128, weight_dimension_numbers=MATRICES)
SOAP = mx.SOAP(1e-3, max_precond_dim=128, weight_dimension_numbers=MATRICES)
KRON = mx.Kron(1e-3, weight_dimension_numbers=MATRICES)
DION = mx.Dion(
    1e-3, rank_fraction=0.25, roles={path: role for path, role in ROLES.items() if path.startswith("layers")}
)
APOLLO = mx.Apollo(1e-3, rank=32, weight_dimension_numbers=MATRICES)
GALORE = mx.GaLore(1e-3, rank=32, method="range", weight_dimension_numbers=MATRICES)
V5E_16, V5E_256 = ("v5e:4x4", {"data": 16}), ("v5e:16x16", {"data": 256})
PODS = (
    Pod("AdamW, FSDP", ADAM, *V5E_256, sent=0, temp=1),
    Pod("LAMB, FSDP", mx.LAMB(1e-3), *V5E_256, sent=0.001, temp=16),
    Pod("Adafactor, FSDP", mx.Adafactor(1e-3), *V5E_256, sent=0.1, temp=16),
    Pod("`LowBit(AdamW)`, FSDP", mx.LowBit(ADAM), *V5E_256, sent=0, temp=16),
    # The new parameters are gathered, which is what ZeRO-1 is, from parts that are stored: 1/16 or 1/64 of them.
    Pod("AdamW, ZeRO-1", ADAM, *V5E_16, sent=5.5, temp=330, spec=None, zero="data"),
    Pod("AdamW, ZeRO-1", ADAM, "h100:64", {"data": 64}, sent=5.5, temp=170, spec=None, zero="data"),
    *(
        # In the steps that accumulate, nothing is gathered.
        Pod("`MultiSteps(AdamW)`, ZeRO-1", mx.MultiSteps(ADAM, 4), *place, sent=5.5, temp=temp, spec=None, zero="data")
        for place, temp in ((V5E_16, 340), (("h100:64", {"data": 64}), 205))
    ),
    # The updates of whole matrices return to the parts first.
    Pod("Muon, ZeRO-1", MUON, *V5E_16, sent=6.2, temp=540, share=1.3, spec=None, zero="data"),
    Pod("Muon, FSDP", MUON, *V5E_16, sent=0.75, temp=330, share=1.3),  # whole matrices, of 64 MiB each
    Pod("Muon in bfloat16, FSDP", MUON.replace(dtype=jnp.bfloat16), *V5E_16, sent=0.5, temp=110, share=1.3),
    Pod("Muon, FSDP", MUON, *V5E_256, sent=0.5, temp=300, share=3.3),
    Pod("Muon, FSDP × TP", MUON, "v5e:16x16", {"data": 32, "model": 8}, sent=0.5, temp=300, share=2.8, spec=over_both),
    *(
        Pod(name, optimizer, *V5E_16, sent=0.07, temp=temp, share=1.1, params=params, work=None)
        # What a loop carries is not in the memory of the core, where small arrays are otherwise.
        for name, optimizer, params, temp in (
            ("Shampoo of 6 million parameters, FSDP", SHAMPOO, BLOCKS, 12),
            ("EShampoo of 6 million parameters, FSDP", ESHAMPOO, BLOCKS, 32),
            ("SOAP of 6 million parameters, FSDP", SOAP, WHOLE, 12),
            ("Kron of 6 million parameters, FSDP", KRON, WHOLE, 32),
            ("Dion of 6 million parameters, FSDP", DION, WHOLE, 12),
            ("Apollo of 6 million parameters, FSDP", APOLLO, WHOLE, 12),
            ("GaLore of 6 million parameters, FSDP", GALORE, WHOLE, 12),
        )
    ),
    Pod("AdamW, FSDP", ADAM, "h100:8", {"data": 8}, sent=0, temp=1),
    Pod("`LowBit(AdamW)`, FSDP", mx.LowBit(ADAM), "h100:8", {"data": 8}, sent=0, temp=200),
    # What a `cond` chooses must not come back whole. XLA for GPU copies what it may pass on.
    Pod("`MultiSteps(AdamW)`, FSDP", mx.MultiSteps(ADAM, 4), "h100:8", {"data": 8}, sent=0, temp=1),
    Pod("`SkipSpikes(Muon)`, FSDP", mx.SkipSpikes(MUON), "h100:8", {"data": 8}, sent=1.3, temp=1800),
)


def pods(words: list[str], failures: list[str]) -> str:
    """The table; what is over a bound is added to `failures`."""
    rows = []
    for pod in PODS:
        if words and not any(word.lower() in pod.name.lower() for word in words):
            continue
        plan = pod.plan()
        sent = sum(c.bytes for c in plan.collectives) / 1e9
        temp = (plan.temp_bytes or 0) / 2**20
        share = (plan.flops or 0) / pod.share_of_work
        over = {
            "GB sent": (sent, pod.sent),
            "MiB of temporary memory": (temp, pod.temp),
            "of its share": (share, pod.share),
        }
        failures += [
            f"{pod.name} on {pod.topology}: {found:.3g} {what}, more than {most}"
            for what, (found, most) in over.items()
            if found > most + 1e-4 and (what != "of its share" or most)
        ]
        failures += [f"{pod.name} on {pod.topology} returns `{path}` elsewhere" for path in plan.resharded]
        counts: collections.Counter[str] = collections.Counter()
        for c in plan.collectives:  # one for each kind and transform
            counts[c.kind] += c.count
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
        moved = f"{(plan.hbm_bytes or 0) / plan.ideal_bytes:.2f}"
        of_share = f"{share:.2f}" if pod.share else ""
        mesh = f"{pod.topology}, " + " × ".join(f"{axis} {size}" for axis, size in pod.mesh.items())
        rows.append([f"{pod.name}; {mesh}", moved, f"{temp:.0f}", f"{sent:.3f}", kinds, of_share])
    figures = ["bytes, × ideal", "temp, MiB", "GB sent", "transfers", "products, × share"]
    return table(["1.3 billion parameters, or as said", *figures], rows)

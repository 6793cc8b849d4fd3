"""Every container around every other one, and around optimizers of several kinds."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import modulax as mx
from modulax import aggregate, schedules
from modulax.numerics import abs_sq

from .own_containers import Mean, SkipLarge


def bowl(params: Any) -> jax.Array:
    """An objective for parameters of every kind, complex ones too, or none."""
    return sum(
        (jnp.sum(jnp.sqrt(1 + abs_sq(jnp.asarray(p)).astype(float))) for p in jax.tree.leaves(params)), jnp.zeros(())
    )


def every_second(tree: Any) -> Any:
    """A mask for trees of any form: the first leaf, the third, and so on."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef.unflatten([i % 2 == 0 for i in range(len(leaves))])


def is_not_third(step: Any) -> jax.Array:
    """A condition that holds at some steps; it has a name, because lambdas cannot be pickled."""
    return step % 3 != 2


SLOPE = jax.grad(bowl)  # one function, so that it is traced once
PARAMS = {"bias": jnp.asarray([0.3, -0.2]), "kernel": jnp.asarray([[0.4, -0.1], [1.5, 3.0]])}
RATE = schedules.Linear(0.1, 0.01, 20)
MOMENTUM = schedules.Linear(0.9, 0.5, 20)  # a number that no container has


class Witness(mx.AbstractLeafwise):
    """Counts, and needs the extra arguments of the others; it remembers, while traced, with which it was called."""

    needs: ClassVar[tuple[str, ...]] = ("value", "value_fn", "grad")
    seen: ClassVar[list[Any]] = []

    def survey(self, count, state, updates, params, *, value=None, value_fn=None, grad=None, token=None, **extra):
        del count, state, extra
        assert value_fn is not None
        Witness.seen.append(token)
        # What reaches it here has the form of its own updates and parameters.
        assert jax.tree.structure(grad) == jax.tree.structure(updates)
        return jnp.asarray(value).astype(float) - value_fn(params)

    def update_leaf(self, now, g, s, p):
        del p
        return (1.0 + 0.0 * now) * g, s


def heart(has_witness: bool = True) -> mx.AbstractTransform:
    """The innermost transform: it needs extra arguments, counts, and follows a schedule."""
    optimizer = mx.SGD(RATE, momentum=MOMENTUM)
    return mx.Chain(Witness(), optimizer) if has_witness else optimizer


def extra(params: Any, updates: Any) -> dict[str, Any]:
    """All extra arguments that a transform may need."""
    del updates
    return {
        "value": bowl(params),
        "value_fn": bowl,
        "obj_fn": bowl,
        "grad": jax.tree.map(lambda p: 0.5 * p, params),
        "grad_fn": SLOPE,
    }


CONTAINERS: dict[str, Callable[[Any], mx.AbstractTransform]] = {
    "Chain": lambda t: mx.Chain(mx.Scale(0.5), t),
    "Masked": lambda t: mx.Masked(t, every_second, otherwise="zero"),
    "Partition": lambda t: mx.Partition({True: t, False: mx.Scale(-0.1)}, every_second),
    "MultiSteps": lambda t: mx.MultiSteps(t, 2),
    "Scheduled": mx.Scheduled,
    "Injected": mx.Injected,
    "ApplyIfFinite": lambda t: mx.ApplyIfFinite(t, 3),
    "SkipSpikes": lambda t: mx.SkipSpikes(t, 4, 0.5),
    "ConditionallyTransform": lambda t: mx.ConditionallyTransform(t, is_not_third),
    "ConditionallyMask": lambda t: mx.ConditionallyMask(t, is_not_third),
    "Flatten": mx.Flatten,
    "SplitRealAndImaginary": mx.SplitRealAndImaginary,
    "Stacked": mx.Stacked,
    "MasterWeights": mx.MasterWeights,
    "StochasticRounding": mx.StochasticRounding,
    "LossScaling": mx.LossScaling,
    "Lookahead": lambda t: mx.Lookahead(t, 2, 0.5),
    "ParamEMA": lambda t: mx.ParamEMA(t, 0.9),
    "ParamAverage": lambda t: mx.ParamAverage(t, window=2),
    "LowBit": lambda t: mx.LowBit(t, min_size=0),
    "ScheduleFree": lambda t: mx.ScheduleFree(t, 0.1),
    "Offload": mx.Offload,
    "Cautious": mx.Cautious,
    "DiLoCo": lambda t: mx.DiLoCo(t, 2),
    "SAM": lambda t: mx.SAM(t, mx.SGD(0.05)),
    "Mechanize": mx.Mechanize,
    "ScaleByGaLore": lambda t: mx.ScaleByGaLore(1, base_optimizer=t),
    "ScaleByShampoo": lambda t: mx.ScaleByShampoo(eps=0.1, precondition_frequency=40, start=1, grafting=t),
    "ScaleBySophia": lambda t: mx.ScaleBySophia(hessian_diagonal_fn=t, update_interval=1),
    "ScaleByAdaHessian": lambda t: mx.ScaleByAdaHessian(hessian_diagonal_fn=t),
    "Process": lambda t: aggregate.Process(mx.Scale(2.0), mx.Scale(0.5), t),
    # A user's, which are in the matrix by being listed.
    "SkipLarge": lambda t: SkipLarge(t, 1e30),
    "Mean": lambda t: Mean(mx.Scale(-0.1), {"a": t}),
}
# What `Stacked` accepts.
IN_STACKED = {
    *("Chain", "MultiSteps", "Scheduled", "Injected", "ConditionallyTransform", "ConditionallyMask", "MasterWeights"),
    *("Lookahead", "ParamEMA", "ParamAverage", "LowBit", "ScheduleFree", "AdamW", "ScheduleFreeAdamW"),
    "Cautious",
}
# The first takes per-example updates, which not every container can hand on: `test_aggregate.py` has its compositions.
# The second is `Cautious` but for the rule on one array, and the third runs its part as `ScaleBySophia` does.
NOT_COMPOSED = {"AddMeanVarianceToOpt", "Grams", "ScaleBySophiaG"}
OPTIMIZERS: dict[str, Callable[[], mx.AbstractTransform]] = {
    "AdamW": lambda: mx.AdamW(RATE),
    "PolyakSGD": mx.PolyakSGD,
    "Sophia": lambda: mx.Sophia(RATE),
    "Muon": lambda: mx.Muon(RATE, adam_learning_rate=RATE),
    "ScheduleFreeAdamW": lambda: mx.ScheduleFreeAdamW(RATE),
}


@dataclasses.dataclass(frozen=True)
class Composition:
    """A container around something.

    Args:
        outer: the name of the container.
        inner: the name of what it holds: a container around `heart()`, or an optimizer.
    """

    outer: str
    inner: str

    def __str__(self) -> str:
        return f"{self.outer}-{self.inner}"

    @property
    def is_pair(self) -> bool:
        return self.inner in CONTAINERS

    @property
    def has_witness(self) -> bool:
        """Whether it holds a `Witness`, which looks at all arrays together: `Stacked` refuses it."""
        return self.is_pair and "Stacked" not in (self.outer, self.inner)

    @property
    def is_refused(self) -> bool:
        """Whether the inner transform doesn't treat each array alone, as in `Stacked`, or reads roles, in `Flatten`."""
        reads_roles = self.inner in ("Muon", "ScaleByGaLore")
        return (self.outer == "Stacked" and self.inner not in IN_STACKED) or (self.outer == "Flatten" and reads_roles)

    @property
    def params(self) -> dict[str, jax.Array]:
        """Parameters of several shapes; two of one shape where they can be in a stack."""
        more = {"bias2": jnp.asarray([0.1, 0.7])} if "Stacked" in (self.outer, self.inner) else {}
        return PARAMS | more

    def make(self) -> mx.AbstractTransform:
        inside = CONTAINERS[self.inner](heart(self.has_witness)) if self.is_pair else OPTIMIZERS[self.inner]()
        return CONTAINERS[self.outer](inside)


def compositions() -> Iterator[Composition]:
    for outer in CONTAINERS:
        for inner in (*CONTAINERS, *OPTIMIZERS):
            yield Composition(outer, inner)

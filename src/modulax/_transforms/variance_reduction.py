"""Variance reduction with the gradient of the step before, for MARS."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, OptionalNumber, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import kept, zeros_in
from .._support.checks import DECAY, NON_NEGATIVE, listing
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared
from ..numerics._norms import safe_norm
from ..tree._math import trainable
from ..tree._paths import leaf_paths, leaves_by_names, named_leaves
from .clipping import shrinking, shrunk


class ReduceVarianceState(AbstractState):
    """State of `ReduceVariance`: step count, and the last updates, or None in the exact form."""

    last: PyTree = like_params()
    count: Shared[Count] = counter()


class _Previous(NamedTuple):
    """The number of steps before, and the gradient at the previous parameters in the exact form."""

    count: Any
    gradient: Array | None = None


class ReduceVariance(AbstractLeafwise[ReduceVarianceState]):
    r"""Corrects each gradient by its difference from the last one, before a momentum: variance reduction (MARS).

    $$
    c_t = g_t + \gamma \frac{\beta}{1 - \beta} (g_t - g'_t), \qquad
        u_t = c_t \min(1, \Delta / \|c_t\|_F)
    $$

    $\beta$ is the decay rate of the momentum that follows, and the norm is that of each array. In the approximate form
    of MARS, $g'_t = g_{t-1}$ is the gradient of the last batch at the last parameters. In the exact form, $g'_t$ is the
    gradient of the current batch at the last parameters, which `update` and `step` take as `previous_grad`:

        previous = jax.grad(loss)(last_params, batch)
        grads = jax.grad(loss)(params, batch)
        updates, state = ReduceVariance(exact=True).update(grads, state, params, previous_grad=previous)

    `previous_grad` is used as given: scale, clip or accumulate it like the gradient beforehand. In either form $g'_1 =
    0$, as in the authors' code, and `previous_grad` is not read in the first step.

    Args:
        gamma: strength $\gamma$ of the correction.
        beta: exponential decay rate $\beta$ of the momentum that follows.
        max_norm: largest norm $\Delta$ of an array; None for no clipping.
        exact: whether `update` is given `previous_grad`, the gradient of the present batch at the last parameters.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024.
    """

    gamma: Number = number(0.025)
    beta: Number = number(0.95, needs=DECAY)
    max_norm: OptionalNumber = number(1.0, needs=NON_NEGATIVE, optional=True)
    exact: bool = eqx.field(static=True, default=False, kw_only=True)

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("previous_grad",) if self.exact else ()

    def init_leaf(self, p):
        return ReduceVarianceState(last=None if self.exact else zeros_in(p, None))

    def prepare(self, count):
        return _Previous(count)

    def _read(self, updates, extra):
        if not self.exact:
            return None
        given, (leaves, treedef) = trainable(extra["previous_grad"]), jtu.tree_flatten(updates)
        if jtu.tree_structure(given) == treedef:
            found = jtu.tree_leaves(given)
        else:
            by_names = leaves_by_names("ReduceVariance.update(previous_grad=...)", given)
            found = [by_names.get(names) for names, _ in named_leaves(updates)]
        rows = zip(leaf_paths(updates), leaves, found, strict=True)
        if lacking := [path for path, g, x in rows if getattr(x, "shape", None) != g.shape]:
            raise ValueError(
                "`ReduceVariance(exact=True)` needs `previous_grad`, the gradient at the last parameters, with the "
                f"leaves and shapes of the gradient. Missing, or of another shape: {listing(lacking)}."
            )
        return treedef.unflatten(found)

    def _at_leaf(self, now: Any, own: Any) -> _Previous:
        return now._replace(gradient=own)

    def update_leaf(self, now, g, s, p):
        del p
        last = jnp.where(now.count == 0, 0, now.gradient) if self.exact else s.last
        weight = self.gamma * self.beta / (1 - self.beta)
        c = g + weight * (g - last)
        if self.max_norm is not None:
            by = shrinking(self.max_norm, safe_norm(c, 0.0))
            # Made again from the gradients behind a barrier, or else XLA for TPU stores the result until the norm is
            # known.
            by, g, last = jax.lax.optimization_barrier((by, g, last))
            c = shrunk(g + weight * (g - last), by)
        return c, ReduceVarianceState(last=None if self.exact else kept(g, last, now.count))

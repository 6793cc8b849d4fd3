"""`MasterWeights`: parameters in bfloat16 or float16, with float32 masters in the state."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool, DTypeLike, Inexact, PyTree

from .._protocol.container import AbstractContainer, in_dtypes_of, required_part
from .._protocol.extra_arguments import extra_inside
from .._protocol.transform import KEEPS_PARAMETERS, AbstractTransform, Effect
from .._support.arithmetic import common_dtype, copy_in, is_narrower
from .._support.module import AbstractState, like_params, nested
from .._support.placement import typed_like
from .._support.types import Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_leaves


class MasterWeightsState(AbstractState):
    """State of `MasterWeights`: the masters, and the inner state.

    `master` is None for parameters that have at least the dtype of the masters.
    """

    master: PyTree = like_params(copied=True)
    inner_state: State = nested()


class MasterWeights(AbstractContainer):
    r"""Master weights for mixed precision: parameters in bfloat16 or float16, and float32 copies of them in the state.

    $$
    m_{t+1} = m_t + u_t, \qquad p_{t+1} = \operatorname{round}(m_{t+1})
    $$

    A step smaller than the spacing of bfloat16 changes the master $m$, and the parameter $p$ follows when enough steps
    have added up. The inner transform works in float32: its gradients, its parameters (the masters) and its moments.

        optimizer = MasterWeights(AdamW(1e-4))
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)

    The parameter is the rounded master, bit for bit, as long as the updates are applied unchanged: by `apply_updates`,
    by `step`, and inside containers that only select or delay steps, such as `Masked`, `Partition`, `MultiSteps` or
    `ApplyIfFinite`. The updates are in float32 for this reason, whatever dtype the gradients have;
    `optax.apply_updates` gives the same result. Put transforms that change updates into `inner`, not after the
    container.

    If a parameter differs from the rounded master, something else has changed it: a projection, a reset, loaded
    weights. The next step then starts at the parameter. A float16 parameter whose master exceeds 65504 becomes
    infinite, and stays infinite.

    Parameters in float32 have no master and cost no memory. Extra arguments that are functions of the parameters, such
    as `value_fn`, are called with parameters in their own dtypes. `eval_params` returns the evaluation parameters of
    the inner transform at the masters, rounded.

    Args:
        inner: the inner transform.
        dtype: dtype of the masters, at least float32.

    References:
        Micikevicius et al., [Mixed Precision Training](https://arxiv.org/abs/1710.03740), 2017.
    """

    inner: AbstractTransform = required_part()
    dtype: DTypeLike = eqx.field(static=True, default=jnp.float32)

    _keeps = "direction"
    _why_last = KEEPS_PARAMETERS
    needs: ClassVar[tuple[str, ...]] = ("params",)
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True

    def _effect(self, tree: Params) -> Effect:
        del tree
        return Effect(is_fine=True)

    @property
    def update_dtype(self) -> DTypeLike:
        # A step in bfloat16 is rounded, and would not lead exactly to the rounded new master.
        return self.dtype

    def check(self) -> None:
        if not jnp.issubdtype(self.dtype, jnp.floating) or jnp.finfo(self.dtype).bits < 32:
            raise ValueError(
                f"`MasterWeights(dtype=...)` is the dtype of the masters, `jnp.float32` or `jnp.float64`, got "
                f"{jnp.dtype(self.dtype).name}. Cast the parameters to the low precision that you train in."
            )

    def init(self, params: Params) -> MasterWeightsState:
        """Return copies of the low-precision parameters as masters, and the inner state for these."""

        def master(p: Array) -> Array | None:
            # A parameter that is as wide as a master needs none.
            return copy_in(p, self.dtype) if is_narrower(p.dtype, self.dtype) else None

        leaves, treedef = jtu.tree_flatten(params)
        masters = [master(p) for p in leaves]
        wide = [p if m is None else m for m, p in zip(masters, leaves, strict=True)]
        return MasterWeightsState(treedef.unflatten(masters), self.inner.init(treedef.unflatten(wide)))

    def update(
        self, updates: Updates, state: MasterWeightsState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MasterWeightsState]:
        """Run one step of the inner transform on the masters; return the way from the parameters to the new ones."""
        treedef = jtu.tree_structure(updates)
        p = jtu.tree_leaves(params)
        stored, put = align(state.master, updates, "MasterWeights.update")
        masters = _current(stored, p)

        def down(tree: PyTree) -> PyTree:
            return jtu.tree_map(lambda x: x.astype(common_dtype(x.dtype, self.dtype)), tree)

        def up(tree: PyTree) -> PyTree:
            return in_dtypes_of(params, tree, "MasterWeights.update")

        steps, inner_state = self.inner.update(
            down(updates), state.inner_state, treedef.unflatten(masters), **extra_inside(extra, updates, down, up)
        )
        columns = zip(stored, masters, p, jtu.tree_leaves(steps), strict=True)
        rows = map_leaves(_moved, None, list(columns))
        new_state = MasterWeightsState(put([m for _, m in rows]), inner_state)
        return treedef.unflatten([u for u, _ in rows]), new_state

    # Overridden because the inner transform has stepped from the masters.
    def eval_params(self, state: MasterWeightsState, params: Params) -> Params:
        """Return the evaluation parameters of the inner transform at the masters, in the dtypes of the parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        leaves, treedef = jtu.tree_flatten(params)
        stored, _ = align(state.master, params, "MasterWeights.eval_params")
        masters = treedef.unflatten(_current(stored, leaves))
        tree = self.at(state).inner.eval_params(state.inner_state, masters)
        return in_dtypes_of(params, tree, "MasterWeights.eval_params")


def _current(masters: list[Array | None], params: list[Array]) -> list[Array]:
    """The masters, or the parameters where these are not the rounded masters or have none."""

    def one(_: None, m: Array | None, p: Array) -> Array:
        if m is None:
            return p
        p = typed_like(p, m)
        # Bits, because XLA may compare numbers in float32, without rounding the master.
        return jnp.where(_same_bits(m.astype(p.dtype), p), m, p.astype(m.dtype))

    return map_leaves(one, None, list(zip(masters, params, strict=True)))


def _moved(_: None, stored: Array | None, m: Array, p: Array, u: Array) -> tuple[Array, Array | None]:
    """The update of a parameter, and its master after the step."""
    if stored is None:
        return u, None
    dtype = common_dtype(m.dtype, u.dtype)
    start, end = typed_like(p, m).astype(dtype), m.astype(dtype) + u.astype(dtype)
    step = jnp.where(jnp.isfinite(start), end - start, 0)  # infinity minus infinity is NaN
    # The sum that `apply_updates` rounds, and not `end`: rounding in `step` could make these two differ.
    return step, lax.add(start, step).astype(m.dtype)


def _same_bits(x: Inexact[Array, "*shape"], y: Inexact[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Where two real arrays of one dtype hold the same bits; the two zeros count as the same."""
    bits = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    a, b = jax.lax.bitcast_convert_type(x, bits), jax.lax.bitcast_convert_type(y, bits)
    # The two zeros differ in the sign bit alone, which the shift drops.
    return (a == b) | (((a | b) << 1) == 0)

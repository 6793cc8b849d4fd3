"""`StochasticRounding`: parameters in bfloat16 or float16 that small steps change with the right probability."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, DTypeLike

from .._protocol.container import AbstractContainer, required_part
from .._protocol.transform import AbstractTransform, Effect
from .._support.arithmetic import is_narrower
from .._support.keys import key, next_keys
from .._support.module import AbstractState, nested, shared
from .._support.types import Params, State, Updates
from ..tree._math import widened


class StochasticRoundingState(AbstractState):
    """State of `StochasticRounding`: raw data of the key for the next step, and the inner state."""

    rng_key: Array = shared()
    inner_state: State = nested()


class StochasticRounding(AbstractContainer):
    r"""Stochastic rounding of parameters in bfloat16 or float16, which then need no float32 copies.

    $$
    x = p_t + u_t, \qquad
    p_{t+1} = \begin{cases}
        \lceil x \rceil & \text{with probability } (x - \lfloor x \rfloor) / (\lceil x \rceil - \lfloor x \rfloor) \\
        \lfloor x \rfloor & \text{otherwise}
    \end{cases}
    $$

    where $\lfloor x \rfloor$ and $\lceil x \rceil$ are the two neighbours of $x$ in the dtype of the parameter. The
    expectation of $p_{t+1}$ is $x$. Rounding to nearest loses every step smaller than half the spacing, so training in
    bfloat16 stalls at small learning rates.

        StochasticRounding(AdamW(1e-4), key=0)

    It needs less memory than `MasterWeights`, and adds noise instead. The inner transform computes in float32 and
    stores its moments as it does for parameters of this dtype. The updates are in float32, so that `apply_updates`
    rounds nothing; put transforms that change updates into `inner`. A sum beyond the largest finite number of the dtype
    becomes that number. Parameters in float32 are updated as usual.

    Args:
        inner: the inner transform.
        key: a seed, or a JAX key, for the rounding.

    References:
        Gupta et al., [Deep Learning with Limited Numerical Precision](https://arxiv.org/abs/1502.02551), 2015; Zamirai
        et al., [Revisiting BFloat16 Training](https://arxiv.org/abs/2010.06192), 2020.
    """

    inner: AbstractTransform = required_part()
    key: Any = key()

    _keeps = "direction"
    _why_last = "rounds the new parameters"
    needs: ClassVar[tuple[str, ...]] = ("params",)
    is_one_pass: ClassVar[bool] = True
    # Updates in the dtype of the parameter would be rounded to the nearest before they are rounded at random.
    update_dtype: ClassVar[DTypeLike] = jnp.float32

    def _effect(self, tree: Params) -> Effect:
        del tree
        return Effect(is_fine=True)

    def init(self, params: Params) -> StochasticRoundingState:
        """Return a copy of the key, and the inner state."""
        return StochasticRoundingState(jnp.array(self.key, copy=True), self.inner.init(params))

    def update(
        self, updates: Updates, state: StochasticRoundingState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, StochasticRoundingState]:
        """Run one step of the inner transform for float32 updates; return the ways to the rounded parameters."""
        steps, inner_state = self.inner.update(widened(updates), state.inner_state, params, **extra)
        leaves, treedef = jtu.tree_flatten(steps)
        kept, keys = next_keys(state.rng_key, len(leaves))
        rows = zip(leaves, jtu.tree_leaves(params), keys, strict=True)
        rounded = [_way(u, p, k) if is_narrower(p.dtype, jnp.float32) else u for u, p, k in rows]
        return treedef.unflatten(rounded), StochasticRoundingState(kept, inner_state)


def _way(u: Array, p: Array, rng_key: Array) -> Array:
    """The difference between a neighbour of p + u, chosen at random, and p."""
    start = p.astype(u.dtype)
    x = start + u
    neighbour = _rounded(x.astype(jnp.float32), p.dtype, rng_key).astype(u.dtype)
    # An infinity or NaN shows in the parameter, and is not clipped to its largest number.
    return jnp.where(jnp.isfinite(x), neighbour - start, u)


def _rounded(x: Array, dtype: DTypeLike, rng_key: Array) -> Array:
    """One of the two neighbours of x in the dtype, as float32, with the expectation x."""
    info = jnp.finfo(dtype)
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    if info.nexp == 8:  # bfloat16 is the upper half of float32: adding to the lower half carries with its probability
        noise = jax.random.bits(rng_key, x.shape, jnp.uint16).astype(jnp.uint32)
        bits = lax.bitwise_and(bits + noise, jnp.full_like(bits, 0xFFFF0000))
        near = lax.bitcast_convert_type(bits, jnp.float32)
    else:
        power = lax.bitcast_convert_type(lax.bitwise_and(bits, jnp.full_like(bits, 0x7F800000)), jnp.float32)
        # Below the smallest normal number, the spacing no longer depends on the magnitude.
        spacing = jnp.maximum(power, info.smallest_normal.astype(jnp.float32)) * info.eps.astype(jnp.float32)
        steps = x / spacing  # exact: the spacing is a power of two
        low = jnp.floor(steps)
        # 24 bits, which a float32 holds exactly.
        noise = (jax.random.bits(rng_key, x.shape, jnp.uint32) >> 8).astype(jnp.float32) * 2.0**-24
        near = (low + (noise < steps - low).astype(jnp.float32)) * spacing
    # A finite number above the largest one is not rounded up to infinity.
    largest = float(info.max)
    return jnp.clip(near, -largest, largest)

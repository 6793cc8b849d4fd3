"""Differential privacy: clipping of per-example gradients, and noise."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import ArrayLike, Int, Key, UInt32

from .. import authoring as ma
from .._support.arithmetic import is_inexact_array
from .._support.keys import as_key, next_keys
from .._transforms.clipping import shrinking, shrunk
from ..tree._math import widened
from ..tree._paths import leaves_with_paths
from .sgd import SGD


def per_example_global_norm_clip(grads: ma.Updates, l2_norm_clip: ArrayLike) -> tuple[ma.Updates, Int[ma.Array, ""]]:
    """Clips per-example gradients by their global norm, and sums them over the examples.

    Args:
        grads: per-example gradients; every array has a leading axis of examples.
        l2_norm_clip: largest norm $C$ of the gradient of one example, over all arrays together.

    Returns:
        The sum of the clipped gradients, without the leading axis (of integers as floats), and the number of gradients
        that exceeded the bound.

    Raises:
        ValueError: if the arrays don't share a leading axis of length at least 1.

    References:
        Abadi et al., [Deep Learning with Differential Privacy](https://arxiv.org/abs/1607.00133), 2016.
    """
    _check_leading_axis("per_example_global_norm_clip", grads)
    sums, counts = _clipped_sum(grads, jnp.asarray(l2_norm_clip).astype(ma.default_float()))
    return sums, counts


def per_example_layer_norm_clip(
    grads: ma.Updates, global_l2_norm_clip: ArrayLike, uniform: bool = True
) -> tuple[ma.Updates, ma.PyTree[Int[ma.Array, ""]]]:
    r"""Clips per-example gradients array by array, with a bounded global norm, and sums them over the examples.

    Args:
        grads: per-example gradients; every array has a leading axis of examples.
        global_l2_norm_clip: largest norm $C$ of the gradient of one example, over all $K$ arrays together.
        uniform: whether the bound of each array is $C / \sqrt K$. If False, it is $C \sqrt{D_i / D}$ for an array with
            $D_i$ of all $D$ entries.

    Returns:
        The sum of the clipped gradients, without the leading axis (of integers as floats), and for each array the
        number of gradients that exceeded its bound.

    Raises:
        ValueError: if the arrays don't share a leading axis of length at least 1.

    References:
        McMahan et al., [Learning Differentially Private Recurrent Language Models](https://arxiv.org/abs/1710.06963),
        2017.
    """
    _check_leading_axis("per_example_layer_norm_clip", grads)
    leaves, treedef = jtu.tree_flatten(grads)
    sizes = [g[0].size for g in leaves]
    shares = [1 / len(leaves) if uniform else size / sum(sizes) for size in sizes]
    bound = jnp.asarray(global_l2_norm_clip).astype(ma.default_float())
    pairs = [_clipped_sum(g, bound * share**0.5) for g, share in zip(leaves, shares, strict=True)]
    return treedef.unflatten([s for s, _ in pairs]), treedef.unflatten([n for _, n in pairs])


def _clipped_sum(grads: ma.PyTree, bound: ma.Array) -> tuple[ma.PyTree, ma.Array]:
    totals = jax.vmap(ma.norm)(grads) if jtu.tree_leaves(grads) else jnp.zeros(0, ma.default_float())
    by = shrinking(bound.astype(totals.dtype), totals)

    def leaf(g: ma.Array) -> ma.Array:
        wide = g.astype(ma.at_least_float32(g.dtype))
        total = jnp.sum(jax.vmap(shrunk)(wide, by), axis=0)
        return total.astype(g.dtype) if is_inexact_array(g) else total

    return jtu.tree_map(leaf, grads), jnp.sum(totals > bound.astype(totals.dtype)).astype(jnp.int32)


def _check_leading_axis(name: str, grads: ma.PyTree) -> None:
    found = leaves_with_paths(grads)
    for path, g in found:
        if g.ndim == 0 or g.shape[:1] != found[0][1].shape[:1] or len(g) == 0:
            raise ValueError(
                f"`{name}` needs per-example gradients: every array must have a leading axis of examples, of the same "
                f"length, at least 1; at `{path}` the shape is {g.shape}. "
                f"`jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, examples)` returns such gradients."
            )


def secret_key() -> Any:
    """A field for a random key without default, given as a seed or a JAX key."""
    # A default seed is public, and whoever knows the noise can subtract it.
    return eqx.field(converter=as_key, metadata={"key": True})


class DifferentiallyPrivateAggregateState(ma.AbstractState):
    """State of `DifferentiallyPrivateAggregate`: raw data of the key for the next noise."""

    optax_fields = ("rng_key",)

    rng_key: UInt32[ma.Array, "..."] = ma.shared()


class AbstractPrivateAggregate(ma.AbstractFields):
    r"""The hyperparameters of a differentially private mean of gradients.

    Args:
        l2_norm_clip: largest norm $C$ of the gradient of one example.
        noise_multiplier: standard deviation $\sigma$ of the noise, relative to $C$.
        key: a seed, or a JAX key. It determines the noise and must stay secret, so there is no default.
    """

    l2_norm_clip: ma.Number = ma.required_number(needs=ma.NON_NEGATIVE)
    noise_multiplier: ma.Number = ma.required_number(needs=ma.NON_NEGATIVE)
    key: Any = secret_key()

    needs: ClassVar[tuple[str, ...]] = ("real",)

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,)


class DifferentiallyPrivateAggregate(AbstractPrivateAggregate, ma.AbstractTransform):
    r"""Averages clipped per-example gradients and adds Gaussian noise, for differentially private training (DP-SGD).

    $$
    u = \frac 1 n \Bigl( \sum_{i=1}^n g_i \min(1, C / \|g_i\|_2) + \mathcal N(0, \sigma^2 C^2 I) \Bigr)
    $$

    `update` takes per-example gradients $g_i$, with a leading axis of examples on every array, as returned by
    `jax.vmap(jax.grad(loss), in_axes=(None, 0))`. So it must be the first part of a chain. The privacy guarantee
    depends on how the examples are drawn, and on the number of steps. `MultiSteps` can't be put around it, because
    summing several batches with noise in each is a different algorithm.

    Args:
        l2_norm_clip: largest norm $C$ of the gradient of one example.
        noise_multiplier: standard deviation $\sigma$ of the noise, relative to $C$.
        key: a seed, or a JAX key. It determines the noise and must stay secret, so there is no default.

    References:
        Abadi et al., [Deep Learning with Differential Privacy](https://arxiv.org/abs/1607.00133), 2016.
    """

    _keeps = "gradients"

    def init(self, params: ma.Params) -> DifferentiallyPrivateAggregateState:
        """A copy of the key."""
        del params
        return DifferentiallyPrivateAggregateState(rng_key=jnp.array(self.key, copy=True))

    def update(
        self,
        updates: ma.Updates,
        state: DifferentiallyPrivateAggregateState,
        params: ma.Params | None = None,
        **extra: Any,
    ) -> tuple[ma.Updates, DifferentiallyPrivateAggregateState]:
        """The noisy mean, in the shapes of the parameters, and the next key."""
        del params, extra
        _check_leading_axis("DifferentiallyPrivateAggregate.update", updates)
        # The mean is rounded to the dtype of the gradients once, after the noise was added.
        wide = widened(updates)
        sums, _ = per_example_global_norm_clip(wide, self.l2_norm_clip)
        leaves, treedef = jtu.tree_flatten(updates)
        kept, keys = next_keys(state.rng_key, len(leaves))
        std = jnp.asarray(self.l2_norm_clip) * jnp.asarray(self.noise_multiplier)
        means = [
            _noisy_mean(s, std, k, len(g)).astype(g.dtype)
            for s, g, k in zip(jtu.tree_leaves(sums), leaves, keys, strict=True)
        ]
        return treedef.unflatten(means), DifferentiallyPrivateAggregateState(rng_key=kept)


def _noisy_mean(total: ma.Array, std: ma.Array, key: Key[ma.Array, ""], n: int) -> ma.Array:
    return (total + std.astype(total.dtype) * jax.random.normal(key, total.shape, total.dtype)) / n


class DPSGD(AbstractPrivateAggregate, ma.AbstractRated):
    r"""Differentially private SGD (DP-SGD): clips per-example gradients and adds Gaussian noise to their mean.

        optimizer = DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=1.0, key=jax.random.key(1))
        params, state = optimizer.step(per_example_grads, state, params)

    $$
    \begin{aligned}
    \bar g_t &= \frac 1 n \Bigl( \sum_{i=1}^n g_{t,i} \min(1, C / \|g_{t,i}\|_2) + \mathcal N(0, \sigma^2 C^2 I)
        \Bigr) \\
    v_t &= \mu v_{t-1} + \bar g_t \\
    w_{t+1} &= w_t - \eta\, v_t
    \end{aligned}
    $$

    with $g_{t,i}$ the gradient of example $i$ at $w_t$, its norm over all parameters, and $v_0 = 0$. Without
    `momentum`, $v_t = \bar g_t$; with `nesterov`, $w_{t+1} = w_t - \eta (\mu v_t + \bar g_t)$.

    `update` and `step` take per-example gradients: every array has a leading axis of examples.
    `DifferentiallyPrivateAggregate` tells how to compute them.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        l2_norm_clip: largest norm $C$ of the gradient of one example.
        noise_multiplier: standard deviation $\sigma$ of the noise, relative to $C$.
        key: a seed, or a JAX key. It determines the noise and must stay secret, so there is no default.
        momentum: momentum coefficient $\mu$; None for no momentum, and no state for it.
        nesterov: whether to use Nesterov momentum.

    References:
        Abadi et al., [Deep Learning with Differential Privacy](https://arxiv.org/abs/1607.00133), 2016.
    """

    momentum: ma.OptionalNumber = ma.number(None, optional=True)
    nesterov: bool = ma.static(False)

    def directions(self):
        return [self._part(DifferentiallyPrivateAggregate), *self._part(SGD).directions()]

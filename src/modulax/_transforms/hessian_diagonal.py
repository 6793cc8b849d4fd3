"""Estimates of the diagonal of the Hessian, as transforms: what Sophia and AdaHessian divide by."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._protocol.transform import AbstractStatelessTransform, AbstractTransform
from .._support.keys import key, next_keys
from .._support.module import AbstractState, shared
from .._support.tracing import call_user
from .._support.types import Params, Updates
from .._support.varying import varying_like
from ..tree._math import widened


class HutchinsonState(AbstractState):
    """State of `HutchinsonDiagonal`: raw data of the key for the next estimate."""

    optax_fields = ("key",)

    key: Array = shared()


class HutchinsonDiagonal(AbstractTransform):
    r"""Replaces the updates by Hutchinson's estimate of the diagonal of the Hessian: $u = r \odot \nabla^2 f(w)\, r$.

    The entries of $r$ are $\pm 1$ with equal probability. The estimate is unbiased, and exact if the Hessian is
    diagonal. It costs about two gradients.

    The objective $f$ is the extra argument `obj_fn`, a function of the parameters alone. Outside your own `jit`, a
    plain function is compiled at every call. To avoid this, bind the batch as an array in a `jax.tree_util.Partial`:

        obj_fn = jax.tree_util.Partial(loss, batch=batch)
        transform.update(grads, state, params, obj_fn=obj_fn)

    For a whole model, `obj_fn` receives its floating-point arrays, with None in place of all other leaves;
    `eqx.combine` merges the two.

    Args:
        key: a seed, or a JAX key, for the random signs.

    References:
        Hutchinson, [A stochastic estimator of the trace of the influence matrix for Laplacian smoothing
        splines](https://doi.org/10.1080/03610919008812866), 1990;
        Bekas et al., [An estimator for the diagonal of a matrix](https://doi.org/10.1016/j.apnum.2007.01.003), 2007.
    """

    needs: ClassVar[tuple[str, ...]] = ("params", "obj_fn", "real")

    key: Any = key()

    def init(self, params: Params) -> HutchinsonState:
        """A copy of the key."""
        del params
        return HutchinsonState(key=jnp.array(self.key, copy=True))

    def update(
        self,
        updates: Updates,
        state: HutchinsonState,
        params: Params | None = None,
        obj_fn: Callable[[Params], Array] | None = None,
        **extra: Any,
    ) -> tuple[Updates, HutchinsonState]:
        """The estimate, in the dtypes of the updates, and the next key."""
        del extra
        assert obj_fn is not None
        leaves, treedef = jtu.tree_flatten(params)
        kept, signs = random_signs(state.key, leaves)
        # In a `shard_map`, `jax.jvp` requires tangents that vary over the mesh axes over which the parameters do.
        signs = varying_like(leaves, signs)
        _, product = jax.jvp(jax.grad(functools.partial(call_user, obj_fn)), (params,), (treedef.unflatten(signs),))
        products = zip(jtu.tree_leaves(product), signs, jtu.tree_leaves(updates), strict=True)
        return treedef.unflatten([(h * r).astype(u.dtype) for h, r, u in products]), HutchinsonState(key=kept)


def random_signs(raw: Array, leaves: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Return the next key data, and random signs in the shapes and dtypes of arrays."""
    kept, keys = next_keys(raw, len(leaves))
    # In the dtypes of the parameters, which `jax.jvp` requires of tangents.
    return kept, [jax.random.rademacher(k, p.shape, p.dtype) for k, p in zip(keys, leaves, strict=True)]


class GaussNewtonBartlett(AbstractStatelessTransform):
    r"""Replaces the updates by the squares of another gradient: the Gauss-Newton-Bartlett estimate of the diagonal.

    $$
    u = \nabla \hat f(w) \odot \nabla \hat f(w)
    $$

    $\hat f$ is the loss for labels that are drawn from the predictions of the model. Let it be the mean over $B$
    independent predictions, such as the tokens of a batch: then the expectation of $B u$ is the diagonal of the
    Gauss-Newton matrix. It costs one gradient, and is never negative.

    The function $\hat f$ is the extra argument `obj_fn`, a function of the parameters alone. Bind the batch and a key
    for the labels as in `HutchinsonDiagonal`:

        def sampled_loss(params, x, key):
            logits = model_of(params)(x)
            labels = jax.random.categorical(key, jax.lax.stop_gradient(logits))
            return losses.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        obj_fn = jax.tree_util.Partial(sampled_loss, x=x, key=key)
        transform.update(grads, state, params, obj_fn=obj_fn)

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023, algorithm 2.
    """

    needs: ClassVar[tuple[str, ...]] = ("params", "obj_fn", "real")

    def apply(
        self,
        updates: Updates,
        params: Params | None,
        obj_fn: Callable[[Params], Array] | None = None,
        **extra: Any,
    ) -> Updates:
        """The squares, in the dtypes of the updates."""
        del extra
        assert obj_fn is not None
        grads = widened(jax.grad(functools.partial(call_user, obj_fn))(params))
        return jtu.tree_map(lambda u, g: (g * g).astype(u.dtype), updates, grads)

"""Containers as a user writes them: that of the guide, and one of two parts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

import modulax as mx
from modulax.numerics import abs_sq


class SkipLargeState(mx.AbstractState):
    skipped: Array = mx.shared()
    inner_state: PyTree = mx.nested()


class SkipLarge(mx.AbstractContainer):
    """Leaves out a step whose gradients are larger than a bound, and counts how many it left out."""

    inner: mx.AbstractTransform = mx.part()
    max_norm: float = mx.number()

    def init(self, params):
        return SkipLargeState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        new, inner_state = self.inner.update(updates, state.inner_state, params, **extra)
        keep = sum((jnp.sum(abs_sq(u)).astype(float) for u in jax.tree.leaves(updates)), 0.0) <= self.max_norm**2
        kept = jax.tree.map(lambda a, b: jnp.where(keep, a, b), inner_state, state.inner_state)
        skipped = jnp.where(keep, state.skipped, mx.safe_increment(state.skipped))
        return jax.tree.map(lambda u: jnp.where(keep, u, 0), new), SkipLargeState(skipped, kept)


class MeanState(mx.AbstractState):
    first_state: PyTree = mx.nested()
    others: dict[str, PyTree] = mx.nested()


class Mean(mx.AbstractContainer):
    """The mean of the steps of several transforms, of which all but the first are in a mapping."""

    first: mx.AbstractTransform = mx.part(state="first_state")
    others: dict[str, mx.AbstractTransform] = mx.part(state="others")

    def init(self, params):
        return MeanState(self.first.init(params), {k: t.init(params) for k, t in self.others.items()})

    def update(self, updates, state, params=None, **extra):
        mean, first_state = self.first.update(updates, state.first_state, params, **extra)
        states = {}
        for n, (key, other) in enumerate(self.others.items(), start=2):
            step, states[key] = other.update(updates, state.others[key], params, **extra)
            mean = jax.tree.map(lambda m, s, n=n: m + (s.astype(m.dtype) - m) / jnp.asarray(n, m.dtype), mean, step)
        return mean, MeanState(first_state, states)

"""Transforms, schedules and optimizers of one's own, as in the guide."""

from typing import Any

import jax.numpy as jnp
from jax import Array

import modulax as mx


class SoftSign(mx.AbstractLeafwise):
    sharpness: float = mx.number(10.0)

    def update_leaf(self, now, g, s, p):
        return jnp.tanh(self.sharpness * g), s


class Shift(mx.AbstractLeafwise):
    amount: mx.Number = mx.number(0.1)

    def update_leaf(self, now, g, s, p):
        return g - self.amount * jnp.sqrt(self.amount), s


class HeavyBallState(mx.AbstractState):
    velocity: Any
    count: Array | None = mx.counter()


class HeavyBall(mx.AbstractLeafwise[HeavyBallState]):
    decay: mx.Hyperparameter = mx.number(0.9)

    def init_leaf(self, p):
        return HeavyBallState(jnp.zeros_like(p))

    def update_leaf(self, now, g, s, p):
        v = self.decay * s.velocity + g
        return v, HeavyBallState(v)


class BoundedState(mx.AbstractState):
    inner_state: Any = mx.nested()
    guard_state: Any = mx.nested()


class Bounded(mx.AbstractContainer):
    inner: mx.AbstractTransform = mx.required_part()
    bound: mx.Number = mx.required_number()
    guard: mx.AbstractTransform = mx.part(mx.ZeroNaNs(), state="guard_state")

    def init(self, params):
        return BoundedState(self.inner.init(params), self.guard.init(params))

    def update(self, updates, state, params=None, **extra):
        updates, guard_state = self.guard.update(updates, state.guard_state, params, **extra)
        updates, inner_state = self.inner.update(updates, state.inner_state, params, **extra)
        return mx.tree.scale(self.bound, updates), BoundedState(inner_state, guard_state)


class Older(mx.AbstractLeafwise):
    """Without a default, and not required to a type checker."""

    factor: float = mx.number()

    def update_leaf(self, now, g, s, p):
        return self.factor * g, s


class Halving(mx.schedules.AbstractSchedule):
    start: mx.Hyperparameter = mx.required_number()

    def __call__(self, step):
        return self.start * 0.5**step


class Mine(mx.AbstractOptimizer):
    learning_rate: mx.Hyperparameter = mx.required_number()
    b1: Any = mx.number(0.9)
    decay: float | None = mx.number(None, optional=True)

    def transform(self) -> mx.Chain:
        return mx.Chain(mx.ScaleByAdam(self.b1), mx.ScaleByLearningRate(2 * self.learning_rate))


params = {"w": jnp.ones(3)}
for transform in (SoftSign(3.0), SoftSign(), Shift(0.2), Mine(1e-3, 0.8), Mine(Halving(0.1), decay=0.1), Older(2.0)):
    print(transform.update(params, transform.init(params), params)[0])
bounded = Bounded(mx.SGD(0.1), bound=0.5)
print(bounded.update(params, bounded.init(params), params)[0], bounded.replace(bound=Halving(0.1)))
print(mx.Scheduled(Shift(Halving(0.1))))
print(HeavyBall().init(params).velocity["w"], mx.ReduceOnPlateau(0.5).init(params).scale + 1)

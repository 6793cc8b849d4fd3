"""Write a custom transform, schedule and optimizer, and test them against the laws of modulax.

AdaMax divides the first moment by the infinity moment, entry by entry. It is a rule on one array, so you write only the
equations; trees, dtypes, compilation, `vmap` and checkpoints are inherited.

Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import modulax as mx
from modulax.testing import check_transform


class ScaleByAdaMaxState(mx.AbstractState):
    """The state of one array; for the whole tree, each field is a tree. The base class updates `count`."""

    mu: PyTree
    nu: PyTree
    count: Array | None = mx.counter()


class ScaleByAdaMax(mx.AbstractLeafwise):
    r"""The first moment divided by the infinity moment.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \max(\beta_2 v_{t-1}, |g_t|) \\
    u_t &= \frac{m_t}{(1 - \beta_1^t)\,(v_t + \varepsilon)}
    \end{aligned}
    $$
    """

    b1: float = mx.number(0.9)
    b2: float = mx.number(0.999)
    eps: float = mx.number(1e-8)

    def init_leaf(self, p: Array) -> ScaleByAdaMaxState:
        # Slowly decaying moments need at least float32: in bfloat16, 0.999 times a number rounds to that number.
        real = np.promote_types(p.real.dtype, np.float32)
        return ScaleByAdaMaxState(mu=jnp.zeros_like(p), nu=jnp.zeros_like(p, real))

    def prepare(self, count: Any) -> Any:
        t = count + 1
        return 1 - self.b1**t

    def update_leaf(self, now: Any, g: Array, s: Any, p: Any) -> tuple[Array, ScaleByAdaMaxState]:
        del p
        mu = self.b1 * s.mu + (1 - self.b1) * g
        nu = jnp.maximum(self.b2 * s.nu, jnp.abs(g))
        u = mu / now / (self.eps + nu)
        return u, ScaleByAdaMaxState(mu, nu)


class InverseSqrt(mx.schedules.AbstractSchedule):
    """A linear warm-up, then the inverse square root of the step."""

    peak: float = mx.required_number()
    warmup_steps: float = mx.number(10)

    def __call__(self, step: Any) -> Array:
        t = (jnp.asarray(step, float) + 1) / self.warmup_steps
        return self.peak * jnp.minimum(t, 1 / jnp.sqrt(t))


class AdaMaxW(mx.AbstractOptimizer):
    """AdaMax with decoupled weight decay. Every hyperparameter accepts a schedule."""

    learning_rate: Any = mx.required_number()  # a number or a schedule
    b1: Any = mx.number(0.9)
    b2: Any = mx.number(0.999)
    weight_decay: Any = mx.number(1e-4)

    def transform(self) -> mx.Chain:
        return mx.Chain(
            ScaleByAdaMax(self.b1, self.b2),
            mx.AddDecayedWeights(self.weight_decay, mx.decays),
            mx.ScaleByLearningRate(self.learning_rate),
        )


class SquareRoot(mx.AbstractLeafwise):
    """Deliberately wrong: the derivative of the square root is infinite where an update is zero."""

    power: float = mx.number(1.0)

    def update_leaf(self, now: Any, g: Array, s: Any, p: Any) -> tuple[Array, Any]:
        del now, p
        return jnp.sign(g) * jnp.sqrt(jnp.abs(self.power * g)), s


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (256, 3))
    y = jnp.sin(x).sum(axis=1)
    model = eqx.nn.MLP(3, "scalar", width_size=32, depth=2, key=jax.random.key(1))

    @eqx.filter_value_and_grad
    def loss_and_grads(model: eqx.nn.MLP) -> Array:
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    @eqx.filter_jit
    def train_step(model: Any, state: Any, optimizer: AdaMaxW) -> tuple[Any, Any, Array]:
        loss, grads = loss_and_grads(model)
        return *optimizer.step(grads, state, model), loss

    optimizer = AdaMaxW(InverseSqrt(1e-2))
    state = optimizer.init(model)
    for step in range(301):
        learning_rate = optimizer.hyperparameters(state)["learning_rate"]
        model, state, loss = train_step(model, state, optimizer)
        if step % 100 == 0:
            print(f"step {step:3d}  loss {loss:.5f}  learning rate {learning_rate:.4f}")

    print("\nTesting the laws, which takes half a minute ...")
    check_transform(optimizer)
    print("AdaMaxW satisfies all of them.")
    try:
        check_transform(SquareRoot())
    except AssertionError as error:
        print("\nSquareRoot violates one of them:\n")
        print(error)


if __name__ == "__main__":
    main()

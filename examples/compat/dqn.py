"""DQN on CartPole: a replay buffer, a target network, and exploration that decreases."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from cartpole import reset, step

from modulax import compat as optax  # or: import optax

STEPS, CARTS, BUFFER, BATCH = 100, 32, 1024, 256
SCALE = jnp.asarray([2.4, 2.0, 0.21, 2.0])

q_network = nn.Sequential([lambda x: x / SCALE, nn.Dense(32), nn.relu, nn.Dense(2)])
tx = optax.chain(optax.clip(1.0), optax.adam(optax.exponential_decay(1e-2, 50, 0.5), b2=0.99))
exploration = optax.linear_schedule(1.0, 0.1, 60)


def td_loss(params: Any, target_params: Any, batch: Any) -> Any:
    state, action, reward, ended, next_state = batch
    q: Any = q_network.apply(params, state)
    next_q: Any = q_network.apply(target_params, next_state)
    target = reward + 0.8 * (1 - ended) * next_q.max(-1)
    return optax.huber_loss(jnp.take_along_axis(q, action[:, None], 1)[:, 0], target).mean()


def act(params: Any, states: Any, count: Any, key: Any) -> Any:
    """Push each cart, and return the transitions."""
    explore_key, random_key, cart_key = jax.random.split(key, 3)
    q: Any = q_network.apply(params, states)
    explores = jax.random.uniform(explore_key, (CARTS,)) < exploration(count)
    action = jnp.where(explores, jax.random.randint(random_key, (CARTS,), 0, 2), q.argmax(-1))
    new, reward, ended = jax.vmap(step)(jax.random.split(cart_key, CARTS), states, action)
    reward = reward - jnp.abs(new[:, 2] + 0.3 * new[:, 3])  # faster to learn than the reward alone
    return states, action, reward, ended.astype(float), new


@jax.jit
def train_step(carry: Any, count: Any) -> Any:
    params, target_params, opt_state, buffer, states = carry
    act_key, batch_key = jax.random.split(jax.random.fold_in(jax.random.key(1), count))
    seen = act(params, states, count, act_key)
    buffer = jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, 0, 0), rolled(buffer), seen)
    chosen = jax.random.randint(batch_key, (BATCH,), 0, jnp.minimum((count + 1) * CARTS, BUFFER))
    loss, grads = jax.value_and_grad(td_loss)(params, target_params, jax.tree.map(lambda x: x[chosen], buffer))
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    mixed = optax.incremental_update(params, target_params, step_size=0.5)
    target_params = optax.periodic_update(mixed, target_params, count, update_period=2)
    return (params, target_params, opt_state, buffer, seen[-1]), (loss, seen[3].sum())


def rolled(buffer: Any) -> Any:
    return jax.tree.map(lambda x: jnp.roll(x, CARTS, axis=0), buffer)


def train() -> Any:
    """The parameters of both networks, the losses, and how many poles fell in each step."""
    model_key, cart_key = jax.random.split(jax.random.key(0))
    states = jax.vmap(reset)(jax.random.split(cart_key, CARTS))
    params = q_network.init(model_key, states)
    empty = act(params, states, 0, cart_key)
    buffer = jax.tree.map(lambda x: jnp.zeros((BUFFER, *x.shape[1:]), x.dtype), empty)
    carry = params, params, tx.init(params), buffer, states
    (params, target_params, *_), history = jax.lax.scan(train_step, carry, jnp.arange(STEPS))
    return params, target_params, *history


def main() -> Any:
    *_, falls = results = train()
    print(f"falls in steps 30 to 60: {falls[30:60].sum():.0f}, in the last 30 steps: {falls[-30:].sum():.0f}")
    assert falls[-30:].sum() < 0.6 * falls[30:60].sum()
    return results


if __name__ == "__main__":
    main()

"""PPO on CartPole with Flax Linen: four seeds are trained at once, under `jit(vmap(train))`."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from cartpole import reset, step
from flax.training.train_state import TrainState

from modulax import compat as optax  # or: import optax

SEEDS, CARTS, HORIZON, ITERATIONS, EPOCHS, MINIBATCHES = 4, 8, 32, 25, 2, 2


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        actor, critic = nn.tanh(nn.Dense(16)(x)), nn.tanh(nn.Dense(16)(x))
        return nn.Dense(2)(actor), nn.Dense(1)(critic)[..., 0]


class Transition(NamedTuple):
    state: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    ended: Any


def log_prob(logits: Any, action: Any) -> Any:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def advantages(seen: Transition, last_value: Any) -> Any:
    """Generalized advantage estimation, backwards in time."""

    def back(carry: Any, t: Transition) -> Any:
        advantage, next_value = carry
        error = t.reward + 0.99 * next_value * (1 - t.ended) - t.value
        advantage = error + 0.99 * 0.95 * (1 - t.ended) * advantage
        return (advantage, t.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), seen, reverse=True)[1]


def ppo_loss(params: Any, apply: Any, seen: Transition, advantage: Any) -> Any:
    logits, value = apply(params, seen.state)
    ratio = jnp.exp(log_prob(logits, seen.action) - seen.log_prob)
    normalized = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * normalized, jnp.clip(ratio, 0.8, 1.2) * normalized).mean()
    value_loss = optax.l2_loss(value, seen.value + advantage).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    return policy_loss + 0.5 * value_loss - 0.01 * entropy


@jax.jit
@jax.vmap
def train_seed(key: Any) -> Any:
    key, model_key, cart_key = jax.random.split(key, 3)
    model = ActorCritic()
    schedule = optax.linear_schedule(1e-2, 0.0, ITERATIONS * EPOCHS * MINIBATCHES)
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule, b2=0.99, eps=1e-5))
    train_state = TrainState.create(apply_fn=model.apply, params=model.init(model_key, jnp.zeros(4)), tx=tx)

    def act(carry: Any, key: Any) -> Any:
        params, states = carry
        action_key, cart_key = jax.random.split(key)
        logits, value = model.apply(params, states)
        action = jax.random.categorical(action_key, logits)
        new, reward, ended = jax.vmap(step)(jax.random.split(cart_key, CARTS), states, action)
        return (params, new), Transition(states, action, log_prob(logits, action), value, reward, ended)

    def learn(train_state: TrainState, minibatch: Any) -> Any:
        loss, grads = jax.value_and_grad(ppo_loss)(train_state.params, model.apply, *minibatch)
        return train_state.apply_gradients(grads=grads), loss

    def iterate(carry: Any, key: Any) -> Any:
        train_state, states = carry
        act_key, shuffle_key = jax.random.split(key)
        (_, states), seen = jax.lax.scan(act, (train_state.params, states), jax.random.split(act_key, HORIZON))
        batch = seen, advantages(seen, model.apply(train_state.params, states)[1])
        batch = jax.tree.map(lambda x: x.reshape(CARTS * HORIZON, *x.shape[2:]), batch)

        def epoch(train_state: TrainState, key: Any) -> Any:
            order = jax.random.permutation(key, CARTS * HORIZON).reshape(MINIBATCHES, -1)
            return jax.lax.scan(learn, train_state, jax.tree.map(lambda x: x[order], batch))

        train_state, losses = jax.lax.scan(epoch, train_state, jax.random.split(shuffle_key, EPOCHS))
        return (train_state, states), (losses, seen.ended.sum())

    states = jax.vmap(reset)(jax.random.split(cart_key, CARTS))
    (train_state, _), history = jax.lax.scan(iterate, (train_state, states), jax.random.split(key, ITERATIONS))
    return train_state.params, *history


def train() -> Any:
    """The parameters, the losses of 100 steps, and how many poles fell in each iteration, for each seed."""
    params, losses, falls = train_seed(jax.random.split(jax.random.key(0), SEEDS))
    return params, losses.reshape(SEEDS, -1), falls


def main() -> Any:
    *_, falls = results = train()
    print(f"falls in the first five iterations: {falls[:, :5].sum(1)}, in the last five: {falls[:, -5:].sum(1)}")
    assert falls[:, -5:].sum() < 0.7 * falls[:, :5].sum()
    return results


if __name__ == "__main__":
    main()

"""Whole trainings under `jit(vmap(...))`: PPO with Linen's TrainState, and DQN with a target network in Equinox.

In float64, since both are chaotic: a rounding error in a logit changes an action, and then everything after it.
"""

from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax, random

import modulax as mx

from .comparison import assert_same, widened

pytestmark = pytest.mark.usefixtures("x64")


# --- The environment -----------------------------------------------------------------------------

EPISODE = 12


class Cart(NamedTuple):
    """A cart on a line that is pushed left, not at all or right; the reward is higher the nearer it is to zero."""

    position: Any
    velocity: Any
    time: Any

    @property
    def observation(self) -> Any:
        return jnp.stack([self.position, self.velocity])


def new_cart(key: Any) -> Cart:
    position, velocity = random.uniform(key, (2,), minval=-1, maxval=1)
    return Cart(position, velocity, jnp.zeros((), int))


def drive(key: Any, cart: Cart, action: Any) -> tuple[Cart, Any, Any]:
    """The next cart (a new one after the end of an episode), the reward, and whether the episode has ended."""
    velocity = 0.9 * cart.velocity + 0.2 * (action - 1)
    moved = Cart(cart.position + 0.3 * velocity, velocity, cart.time + 1)
    has_ended = moved.time >= EPISODE
    reward = 1 - moved.position**2
    return jax.tree.map(lambda new, old: jnp.where(has_ended, new, old), new_cart(key), moved), reward, has_ended


# --- PPO -----------------------------------------------------------------------------------------

CARTS, HORIZON, ITERATIONS, EPOCHS, MINIBATCHES = 4, 8, 4, 2, 2


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        actor, critic = (nn.tanh(nn.Dense(8)(x)) for _ in range(2))
        return nn.Dense(3)(actor), nn.Dense(1)(critic)[..., 0]


class Moment(NamedTuple):
    observation: Any
    action: Any
    log_probability: Any
    value: Any
    reward: Any
    has_ended: Any


def chosen(logits: Any, actions: Any) -> Any:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]


def advantages(moments: Moment, last_value: Any) -> Any:
    """Generalized advantage estimation, from the last moment to the first."""

    def back(carry: Any, moment: Moment) -> Any:
        advantage, next_value = carry
        goes_on = 1 - moment.has_ended
        error = moment.reward + 0.97 * next_value * goes_on - moment.value
        advantage = error + 0.97 * 0.9 * goes_on * advantage
        return (advantage, moment.value), advantage

    return lax.scan(back, (jnp.zeros_like(last_value), last_value), moments, reverse=True)[1]


def ppo_loss(params: Any, network: ActorCritic, moments: Moment, advantage: Any) -> Any:
    logits, value = network.apply(params, moments.observation)
    ratio = jnp.exp(chosen(logits, moments.action) - moments.log_probability)
    normalized = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * normalized, jnp.clip(ratio, 0.8, 1.2) * normalized).mean()
    probabilities = jax.nn.softmax(logits)
    entropy = -(probabilities * jax.nn.log_softmax(logits)).sum(-1).mean()
    return 0.5 * jnp.mean((value - advantage - moments.value) ** 2) - gain - 0.01 * entropy


def ppo(make_optimizer: Any) -> Any:
    """A training from a key and a learning rate to the parameters and the mean reward of each iteration."""
    network = ActorCritic()

    def train(key: Any, rate: Any) -> Any:
        def anneal(count: Any) -> Any:
            return rate * (1 - count // (EPOCHS * MINIBATCHES) / ITERATIONS)

        key, init_key, cart_key = random.split(key, 3)
        params = widened(network.init(init_key, jnp.zeros(2)))
        state = TrainState.create(apply_fn=network.apply, params=params, tx=make_optimizer(anneal))
        carts = jax.vmap(new_cart)(random.split(cart_key, CARTS))

        def act(carry: Any, key: Any) -> Any:
            params, carts = carry
            action_key, cart_key = random.split(key)
            observation = jax.vmap(lambda cart: cart.observation)(carts)
            logits, value = state.apply_fn(params, observation)
            action = random.categorical(action_key, logits)
            carts, reward, has_ended = jax.vmap(drive)(random.split(cart_key, CARTS), carts, action)
            return (params, carts), Moment(observation, action, chosen(logits, action), value, reward, has_ended)

        def learn(state: TrainState, batch: Any) -> Any:
            grads = jax.grad(ppo_loss)(state.params, network, *batch)
            return state.apply_gradients(grads=grads), None

        def iterate(carry: Any, key: Any) -> Any:
            state, carts = carry
            act_key, shuffle_key = random.split(key)
            (_, carts), moments = lax.scan(act, (state.params, carts), random.split(act_key, HORIZON))
            last_value = state.apply_fn(state.params, jax.vmap(lambda cart: cart.observation)(carts))[1]
            data = jax.tree.map(
                lambda x: x.reshape(CARTS * HORIZON, *x.shape[2:]), (moments, advantages(moments, last_value))
            )

            def epoch(state: TrainState, key: Any) -> Any:
                order = random.permutation(key, CARTS * HORIZON).reshape(MINIBATCHES, -1)
                return lax.scan(learn, state, jax.tree.map(lambda x: x[order], data))

            state, _ = lax.scan(epoch, state, random.split(shuffle_key, EPOCHS))
            return (state, carts), moments.reward.mean()

        (state, _), rewards = lax.scan(iterate, (state, carts), random.split(key, ITERATIONS))
        return state.params, rewards

    return jax.jit(jax.vmap(train))


def test_ppo_over_seeds_and_learning_rates():
    """The optimizer is made inside `train`, so that `vmap` sweeps its learning rate; Flax's TrainState holds it."""
    inputs = random.split(random.key(0), 3), jnp.asarray([0.01, 0.03, 0.1])
    theirs = ppo(lambda rate: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(rate, eps=1e-5)))(*inputs)
    ours = ppo(lambda rate: mx.Chain(mx.ClipByGlobalNorm(0.5), mx.Adam(rate, eps=1e-5)))(*inputs)
    assert_same(ours, theirs, 1e-10)
    assert np.ptp(np.asarray(theirs[1]), axis=1).min() > 0.01


# --- DQN -----------------------------------------------------------------------------------------

BUFFER, BATCH = 64, 8


def dqn(library: Any, tx: Any) -> Any:
    """A training from a key to the parameters of the network and of its target, and the loss of each step."""

    def train(key: Any) -> Any:
        key, net_key, cart_key = random.split(key, 3)
        network, static = eqx.partition(eqx.nn.MLP(2, 3, 8, 1, key=net_key), eqx.is_array)
        network = widened(network)
        cart = new_cart(cart_key)
        empty = {"now": jnp.zeros((BUFFER, 2)), "next": jnp.zeros((BUFFER, 2))}
        empty |= {"action": jnp.zeros(BUFFER, int), "reward": jnp.zeros(BUFFER), "has_ended": jnp.zeros(BUFFER, bool)}

        def quality(network: Any, observation: Any) -> Any:
            return jax.vmap(eqx.combine(network, static))(observation)

        def bellman_loss(network: Any, target: Any, batch: Any) -> Any:
            future = (1 - batch["has_ended"]) * quality(target, batch["next"]).max(-1)
            value = jnp.take_along_axis(quality(network, batch["now"]), batch["action"][:, None], 1)[:, 0]
            return library.losses.huber_loss(value, batch["reward"] + 0.9 * future).mean()

        def step(carry: Any, inputs: Any) -> Any:
            network, target, state, buffer, cart = carry
            count, key = inputs
            explore_key, action_key, cart_key, batch_key = random.split(key, 4)
            greedy = quality(network, cart.observation[None])[0].argmax()
            explores = random.uniform(explore_key) < jnp.maximum(0.1, 1 - count / 50)
            action = jnp.where(explores, random.randint(action_key, (), 0, 3), greedy)
            new, reward, has_ended = drive(cart_key, cart, action)
            seen = {"now": cart.observation, "next": new.observation}
            seen |= {"action": action, "reward": reward, "has_ended": has_ended}
            buffer = jax.tree.map(lambda all, one: all.at[count % BUFFER].set(one), buffer, seen)

            index = random.randint(batch_key, (BATCH,), 0, jnp.minimum(count + 1, BUFFER))
            batch = jax.tree.map(lambda x: x[index], buffer)
            loss, grads = jax.value_and_grad(bellman_loss)(network, target, batch)
            updates, state = tx.update(grads, state, network)
            network = library.apply_updates(network, updates)
            target = library.periodic_update(
                library.incremental_update(network, target, 0.5), target, count, update_period=4
            )
            return (network, target, state, buffer, new), loss

        start = (network, network, tx.init(network), empty, cart)
        inputs = (jnp.arange(100), random.split(key, 100))
        (network, target, *_), losses = lax.scan(step, start, inputs)
        return network, target, losses

    return jax.jit(jax.vmap(train))


def test_dqn_over_seeds():
    keys = random.split(random.key(1), 3)
    theirs = dqn(optax, optax.adam(1e-2))(keys)
    ours = dqn(mx, mx.Adam(1e-2))(keys)
    assert_same(ours, theirs, 1e-10)

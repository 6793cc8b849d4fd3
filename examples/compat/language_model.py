"""A transformer that learns to count, with gradient accumulation; its learning rate is changed in the state."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from modulax import compat as optax  # or: import optax

STEPS, BATCH, LENGTH, TOKENS = 100, 8, 12, 16


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        position = self.param("position", nn.initializers.normal(0.1), (LENGTH, 16))
        x = nn.Embed(TOKENS, 16)(tokens) + position
        x = x + nn.MultiHeadDotProductAttention(2, use_bias=False)(nn.LayerNorm()(x), mask=nn.make_causal_mask(tokens))
        x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.Dense(TOKENS)(nn.LayerNorm()(x))


def batch(key: Any) -> Any:
    """Texts that count in steps of 1, 2 or 3, modulo the number of tokens."""
    start_key, step_key = jax.random.split(key)
    start, step = jax.random.randint(start_key, (BATCH, 1), 0, TOKENS), jax.random.randint(step_key, (BATCH, 1), 1, 4)
    return (start + step * jnp.arange(LENGTH + 1)) % TOKENS


model = Transformer()
adamw = optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2, weight_decay=0.01)
accumulation = optax.MultiSteps(adamw, every_k_schedule=2)
tx = accumulation.gradient_transformation()


def loss_fn(params: Any, text: Any) -> Any:
    logits = model.apply(params, text[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()


@jax.jit
def train_step(params: Any, opt_state: Any, key: Any) -> Any:
    loss, grads = jax.value_and_grad(loss_fn)(params, batch(key))
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def train() -> Any:
    """The parameters, the losses, and how many updates there were."""
    params = model.init(jax.random.key(0), batch(jax.random.key(0))[:, :-1])
    opt_state, losses, updates = tx.init(params), [], 0
    for i in range(STEPS):
        if i == 60:
            opt_state.inner_opt_state.hyperparams["learning_rate"] = jnp.asarray(2e-3)
        params, opt_state, loss = train_step(params, opt_state, jax.random.key(i))
        losses.append(loss)
        updates += accumulation.has_updated(opt_state)
    return params, jnp.stack(losses), updates


def main() -> Any:
    _, losses, updates = results = train()
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f} after {updates} updates")
    assert losses[-1] < 0.5 * losses[0]
    return results


if __name__ == "__main__":
    main()

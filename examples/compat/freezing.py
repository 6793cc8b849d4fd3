"""Transfer learning: the body of a network that was trained on even digits is frozen, its head learns odd ones."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import path_aware_map
from sklearn.datasets import load_digits

from modulax import compat as optax  # or: import optax

STEPS, BATCH = 100, 64


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(10, name="head")(nn.relu(nn.Dense(32, name="body")(x)))


model = Classifier()


def loss_fn(params: Any, images: Any, labels: Any) -> Any:
    return optax.losses.softmax_cross_entropy_with_integer_labels(model.apply(params, images), labels).mean()


def fit(tx: Any, params: Any, images: Any, labels: Any) -> Any:
    """The parameters after 50 steps, and the losses."""

    @jax.jit
    def train_step(params: Any, opt_state: Any, key: Any) -> Any:
        chosen = jax.random.choice(key, len(images), (BATCH,), replace=False)
        loss, grads = jax.value_and_grad(loss_fn)(params, images[chosen], labels[chosen])
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, losses = tx.init(params), []
    for i in range(STEPS // 2):
        params, opt_state, loss = train_step(params, opt_state, jax.random.key(i))
        losses.append(loss)
    return params, jnp.stack(losses)


def part_of(path: tuple[Any, ...], _: Any) -> str:
    return "frozen" if "body" in path else "trained"


def train() -> Any:
    """The parameters after both trainings, and the losses."""
    digits: Any = load_digits()
    images, labels = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    is_odd = digits.target % 2 == 1
    params = model.init(jax.random.key(0), images)
    pretrained, losses = fit(optax.lamb(2e-2), params, images[~is_odd], labels[~is_odd])
    tx = optax.multi_transform(
        {"trained": optax.adam(2e-2), "frozen": optax.set_to_zero()},
        lambda params: path_aware_map(part_of, params),
    )
    params, more = fit(tx, pretrained, images[is_odd], labels[is_odd])
    return pretrained, params, jnp.concatenate([losses, more])


def main() -> Any:
    before, after, losses = results = train()
    print(f"loss on even digits {losses[0]:.3f} → {losses[49]:.3f}, on odd digits {losses[50]:.3f} → {losses[99]:.3f}")
    assert losses[99] < 0.2 * losses[50]
    assert (before["params"]["body"]["kernel"] == after["params"]["body"]["kernel"]).all()
    return results


if __name__ == "__main__":
    main()

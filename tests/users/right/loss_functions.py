"""Losses, projections, assignment."""

import jax
import jax.numpy as jnp

import modulax as mx
from modulax import losses

logits = jnp.array([[2.0, 0.5, -1.0], [0.1, 0.2, 3.0]])
labels = jnp.array([0, 2])
print(losses.softmax_cross_entropy_with_integer_labels(logits, labels, where=labels >= 0))
print(losses.softmax_cross_entropy(logits, losses.smooth_labels(jax.nn.one_hot(labels, 3), 0.1)))
print(losses.sigmoid_binary_cross_entropy(logits, jnp.ones_like(logits)))
print(losses.huber_loss(logits, delta=2.0), losses.squared_error(logits, jnp.zeros_like(logits)))
print(mx.projections.projection_simplex(logits[0]), mx.assignment.hungarian_algorithm(-logits))

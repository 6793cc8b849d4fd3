"""A schedule, a function of the step or a number, wherever a hyperparameter is expected."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import modulax as mx
from modulax import schedules

cosine = schedules.WarmupCosineDecay(0.0, 3e-4, warmup_steps=10, decay_steps=100)
first = mx.AdamW(cosine)
optimizers = [
    first,
    mx.AdamW(cosine, weight_decay=0.1 * cosine / 3e-4),
    mx.AdamW(schedules.CosineDecay(1e-3, 100), b1=schedules.Linear(0.85, 0.95, 1000)),
    mx.SGD(lambda step: 1e-3 * 0.99**step, momentum=0.9),
    mx.SGD(optax.cosine_decay_schedule(1e-3, 100), momentum=None),
    mx.Adam(1),
    mx.Adam(np.float32(1e-3), b1=np.array(0.9), b2=jnp.array(0.99)),
    mx.Adafactor(None, momentum=schedules.Constant(0.9)),
]
for optimizer in optimizers:
    print(optimizer.hyperparameters())
bare = mx.Scheduled(mx.AddDecayedWeights(schedules.Linear(0.0, 0.1, 100)))
joined = schedules.Join([schedules.Linear(0.0, 1.0, 10), schedules.Constant(1.0)], [10])
pieces = schedules.PiecewiseConstant(1.0, {10: 0.1, 20: 0.5})
clipped = schedules.InverseSqrt(1e-3, 1000).clip(low=1e-5)
fraction = schedules.WarmupCosineDecay(0.0, 1e-3, 0.1, 1.0).over(10_000)
for schedule in (joined, pieces, clipped, fraction, 2 * cosine, -cosine, cosine + 1):
    print(schedule(3), jax.jit(schedule)(3))
print(bare, first.learning_rate.peak_value, first.learning_rate(5))

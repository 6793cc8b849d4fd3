"""Reading and changing hyperparameters."""

import dataclasses

import equinox as eqx

import modulax as mx

optimizer = mx.AdamW(1e-3)
lower = optimizer.replace(learning_rate=3e-4)
print(float(lower.learning_rate), 2 * lower.b1, -lower.eps, lower.b2 < 1, lower.learning_rate.dtype)
print(dataclasses.replace(lower, b1=0.8).b1, eqx.tree_at(lambda o: o.b2, lower, 0.99))
scheduled = lower.replace(learning_rate=mx.schedules.CosineDecay(1e-3, 100))
print(scheduled.hyperparameters()["learning_rate.decay_steps"], list(scheduled.addresses()))


def with_rate(learning_rate: mx.ScalarOrSchedule, weight_decay: float = 1e-4) -> mx.AdamW:
    return mx.AdamW(learning_rate, weight_decay=weight_decay)


print(with_rate(1e-3), with_rate(mx.schedules.Constant(0.1)), with_rate(lambda step: 0.1 / (step + 1)))
print(mx.get("adamw")(1e-3), mx.available())

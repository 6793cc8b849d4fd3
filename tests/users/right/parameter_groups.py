"""Parameter groups and masks: the dicts that the docs recommend."""

import jax.numpy as jnp

import modulax as mx

params = {"body": {"w": jnp.ones((2, 3)), "bias": jnp.zeros(3)}, "head": jnp.ones(3)}
partition = mx.Partition(
    {"decay": mx.AdamW(1e-3), "no_decay": mx.Adam(1e-3)},
    mx.by_path({"*.bias": "no_decay", "*": "decay"}),
)
by_number = mx.Partition({0: mx.SGD(0.1), 1: mx.Lion(1e-4)}, {"body": 0, "head": 1})
by_function = mx.Partition({"a": mx.SGD(0.1), "b": mx.RMSProp(1e-3)}, lambda params: {"body": "a", "head": "b"})
with_default = mx.Partition({"a": mx.SGD(0.1)}, mx.by_path({"head": "a"}), default="a")
for optimizer in (partition, by_number, by_function, with_default):
    state = optimizer.init(params)
    updates, state = optimizer.update(params, state, params)
    print(state.inner_states)
masked = mx.Masked(mx.AddDecayedWeights(0.1), mx.by_path({"*.bias": False, "*": True}))
decayed = mx.AdamW(1e-3, mask=mx.by_path({"*.bias": False, "*": True}))
tree = mx.AdamW(1e-3, mask={"body": {"w": True, "bias": False}, "head": True})
print(masked.init(params), decayed.init(params), tree.init(params).inner["scale_by_adam"].mu)

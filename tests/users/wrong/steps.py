"""Wrong calls of methods and functions, and wrong uses of what they return."""

import jax.numpy as jnp

import modulax as mx

params = {"w": jnp.ones(3)}
grads = {"w": jnp.ones(3)}
optimizer = mx.AdamW(1e-3)
state = optimizer.init(params)

optimizer.init()  # wrong: reportCallIssue, call-arg
optimizer.update(grads)  # wrong: reportCallIssue, call-arg
optimizer.step(grads, state)  # wrong: reportCallIssue, call-arg
optimizer.step(grads, state, params, True)  # wrong: reportCallIssue, call-arg
optimizer.step(grads, state, params, donate="yes")  # wrong: reportArgumentType, arg-type
optimizer.minimize(grads)  # wrong: reportAttributeAccessIssue, attr-defined
optimizer.lr  # wrong: reportAttributeAccessIssue, attr-defined
optimizer.update(grads, "state", params)  # wrong: reportArgumentType, arg-type
optimizer.replace(1e-4)  # wrong: reportCallIssue, call-arg
optimizer.hyperparameters()()  # wrong: reportCallIssue, operator
state.mu  # wrong: reportAttributeAccessIssue, attr-defined
state.count  # wrong: reportAttributeAccessIssue, attr-defined
mx.ScaleByAdam().init(params).moment  # wrong: reportAttributeAccessIssue, attr-defined
mx.ScaleByAdam().update(grads, mx.ScaleByLion().init(params))  # wrong: reportArgumentType, arg-type
mx.apply_updates(params)  # wrong: reportCallIssue, call-arg
mx.get(mx.AdamW)  # wrong: reportArgumentType, arg-type
trained, _ = optimizer.step(grads, state, params)
trained.weight  # wrong: reportAttributeAccessIssue, attr-defined
mx.apply_updates(params, grads).weight  # wrong: reportAttributeAccessIssue, attr-defined
optimizer.eval_params(state)  # wrong: reportCallIssue, call-arg


class Mine(mx.AbstractOptimizer):
    learning_rate: mx.Hyperparameter = mx.required_number()
    decay: float = mx.number(0.9)

    def transform(self) -> mx.Chain:
        return mx.Chain(mx.ScaleByLearningRate(self.learning_rate))


class Unfinished(mx.AbstractLeafwise):
    decay: mx.Number = mx.number(0.9)


Mine("0.1")  # wrong: reportArgumentType, arg-type
Mine(0.1, "0.9")  # wrong: reportArgumentType, arg-type
Unfinished()  # wrong: reportAbstractUsage, abstract
Mine()  # wrong: reportCallIssue, call-arg
Mine(decay=0.9)  # wrong: reportCallIssue, call-arg

"""The example on the page of each optimizer, a training step in Equinox, and a check that all of them run."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import modulax as mx

NOTES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("optimizers.toml").read_text(encoding="utf-8"))

BEFORE = """\
import equinox as eqx
import jax
import jax.numpy as jnp
import modulax as mx

model = eqx.nn.MLP(2, "scalar", width_size=8, depth=1, key=jax.random.key(0))
x = jax.random.normal(jax.random.key(1), (32, 2))
y = x[:, 0] - x[:, 1]


def loss_fn(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)

"""
STEP = """
@eqx.filter_jit
def train_step(model, state, optimizer, x, y):
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y)
    model, state = optimizer.step(grads, state, model{extra})
    return model, state, loss
"""
# Per-example gradients: a batch of one example each.
EXAMPLES = """
@eqx.filter_jit
def train_step(model, state, optimizer, x, y):
    # A loss and a gradient per example.
    grads_of = eqx.filter_vmap(eqx.filter_value_and_grad(loss_fn), in_axes=(None, 0, 0))
    losses, grads = grads_of(model, x[:, None], y[:, None])
    model, state = optimizer.step(grads, state, model)
    return model, state, jnp.mean(losses)
"""
AFTER = """

optimizer = mx.{name}({arguments})
state = optimizer.init(model)
for _ in range({steps}):
    model, state, loss = train_step(model, state, optimizer, x, y)
"""
EVALUATED = """\
evaluated = optimizer.eval_params(state, model)  # the model to evaluate and to save
"""
# A function that the optimizer calls itself gets the parameters without the parts of the model that aren't trained.
CALLED = """
params, static = eqx.partition(model, eqx.is_inexact_array)


def objective(params, x, y):
    return loss_fn(eqx.combine(params, static), x, y)


@jax.jit
def train_step(params, state, optimizer, x, y):
    loss, grads = jax.value_and_grad(objective)(params, x, y)
    params, state = optimizer.step(
        grads, state, params{extra}
    )
    return params, state, loss


optimizer = mx.{name}({arguments})
state = optimizer.init(params)
for _ in range({steps}):
    params, state, loss = train_step(params, state, optimizer, x, y)
model = eqx.combine(params, static)
"""
# The extra arguments, as the step of the example passes them.
EXTRA = {
    "value": "value=loss",
    "grad": "grad=grads",
    "value_fn": "value_fn=objective, x=x, y=y",
    "obj_fn": "obj_fn=jax.tree_util.Partial(objective, x=x, y=y)",
}


def example(name: str, steps: int = 100) -> str:
    """The example of an optimizer, by the name of its class."""
    card = mx.card(name.lower())
    fields = card.optimizer.__dataclass_fields__
    needs_rate = "learning_rate" in fields and fields["learning_rate"].default is dataclasses.MISSING
    arguments = NOTES["optimizer"][name].get("example", "1e-3" if needs_rate else "")
    extra = "".join(f", {EXTRA[argument]}" for argument in card.extra)
    if "_fn=" in extra:
        called = CALLED.format(name=name, arguments=arguments, steps=steps, extra=extra)
        return BEFORE.rstrip("\n") + "\n\n" + called
    step = EXAMPLES if card.takes_examples else STEP.format(extra=extra)
    averages = card.optimizer.__name__.startswith("ScheduleFree")
    return BEFORE + step + AFTER.format(name=name, arguments=arguments, steps=steps) + EVALUATED * averages


def run_examples() -> None:
    """Runs the example of every optimizer, with a single step."""
    for name in mx.available():
        code = example(mx.get(name).__name__, steps=1)
        exec(compile(code, f"the example of {name}", "exec"), {"__name__": "example"})

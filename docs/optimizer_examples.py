"""The example on the page of each optimizer, a training step in Equinox, and a check that it runs."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import jinja2

import modulax as mx

HERE = Path(__file__).parent
NOTES: dict[str, Any] = tomllib.loads((HERE / "optimizers.toml").read_text(encoding="utf-8"))
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
)
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
    rate = card.optimizer.__dataclass_fields__.get("learning_rate")
    needs_rate = rate is not None and rate.default is dataclasses.MISSING
    arguments = NOTES["optimizer"][name].get("example", "1e-3" if needs_rate else "")
    extra = "".join(f", {EXTRA[argument]}" for argument in card.extra)
    template = TEMPLATES.get_template("optimizer_example.py.jinja")
    return template.render(name=name, card=card, arguments=arguments, extra=extra, steps=steps)


def run_example(name: str) -> None:
    """Runs the example of an optimizer, with a single step."""
    code = example(mx.get(name).__name__, steps=1)
    exec(compile(code, f"the example of {name}", "exec"), {"__name__": "example"})

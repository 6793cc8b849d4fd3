"""What `help` and completion show of a class."""

import inspect
import pydoc
import re

import jax
import numpy as np
import pytest

import modulax as mx


def test_help_begins_with_what_matters():
    lines = pydoc.plain(pydoc.render_doc(mx.AdamW)).splitlines()
    text = "\n".join(lines)
    signature = "".join("".join(lines[3:14]).replace("|", "").split())  # Python 3.13 writes one argument a line
    assert signature.startswith("AdamW(learning_rate,b1=0.9,b2=0.999,eps=1e-08,")
    first = " |  Adam with decoupled weight decay, the usual first choice for transformers and most other models."
    assert lines.index(first) < 18
    assert lines.index(" |  Args:") < 40
    assert "jax._src" not in text
    assert "__" not in text
    assert len(lines) < 246


def test_operators_are_listed():
    assert {"__call__", "plot"} <= {*dir(mx.schedules.Linear)}
    assert {"__getitem__", "parts"} - {*dir(mx.Chain)} == {"parts"}  # a field without a default isn't a class attribute
    assert "__dataclass_fields__" not in dir(mx.Chain)


def test_signature_of_an_instance():
    """A schedule is callable: the signature of an instance is that of the call."""
    assert list(inspect.signature(mx.schedules.Linear(0.0, 1.0, 10)).parameters) == ["step"]
    assert str(inspect.signature(mx.schedules.Constant)) == "(constant)"


def test_what_a_user_calls_is_listed():
    """And the fields, and what a class of a user adds; the protocol is still there."""
    chain = mx.Chain(clip=mx.Clip(1.0), adamw=mx.AdamW(1e-3))
    called = ["addresses", "at", "eval_params", "hyperparameters", "init", "jit_step", "metrics", "replace", "step"]
    called.append("update")
    assert dir(chain) == sorted([*called, "parts"])
    assert dir(mx.SGD(0.1)) == sorted([*called, "accumulator_dtype", "learning_rate", "momentum", "nesterov"])
    assert dir(chain.init(np.ones(2, np.float32))) == ["names", "parts"]
    schedule = mx.schedules.Constant(0.1)
    assert dir(schedule) == sorted(["addresses", "clip", "constant", "hyperparameters", "over", "plot", "replace"])
    assert all(hasattr(x, name) for x in (chain, schedule) for name in dir(x))
    assert [chain.needs, chain.check()] == [(), None]

    class Own(mx.AbstractStatelessTransform):
        def apply(self, updates, params, **extra):
            del params, extra
            return updates

        def of_its_own(self) -> int:
            return 1

    assert dir(Own()) == sorted([*called, "of_its_own"])


def test_notebooks_complete_the_parts_of_a_chain():
    chain = mx.Chain(clip=mx.Clip(1.0), adamw=mx.AdamW(1e-3))
    state = chain.init(np.ones(2, np.float32))
    for part in chain, state:
        assert part._ipython_key_completions_() == ["clip", "adamw"]
        assert [part[name] is not None for name in part._ipython_key_completions_()] == [True, True]


def test_a_method_of_results_is_a_method():
    optimizer = mx.AdamW(1e-3)
    assert optimizer.hyperparameters == optimizer.hyperparameters
    assert hash(optimizer.metrics) == hash(optimizer.metrics)
    assert optimizer.hyperparameters != mx.AdamW(1e-3).hyperparameters
    assert optimizer.metrics != optimizer.hyperparameters
    assert str(inspect.signature(optimizer.metrics)).startswith("(state")
    assert "short names" in (optimizer.metrics.__doc__ or "")
    traced = [jax.jit(optimizer.hyperparameters) for _ in range(2)]
    assert [f()["b1"] for f in traced] == [np.float32(0.9)] * 2
    assert inspect.isfunction(mx.AdamW.metrics)
    state = optimizer.init(np.ones(2, np.float32))
    assert state  # of any state, although it has no length


@pytest.mark.parametrize("name", mx.available())
def test_help_of_every_optimizer_has_an_example(name: str):
    cls = mx.get(name)
    calls = re.findall(r"^ {4}optimizer = (.*)$", inspect.getdoc(cls) or "", re.MULTILINE)
    assert calls, f"`{cls.__name__}` has no example: an indented line `optimizer = {cls.__name__}(...)`"
    names = {x: getattr(mx, x) for x in dir(mx)} | {"jax": jax, "tokens": 512}
    for call in calls:
        assert f"{cls.__name__}(" in repr(eval(call, names)), call  # eval: the text is our own

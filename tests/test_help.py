"""What `help` and completion show of a class."""

import inspect
import pydoc

import modulax as mx


def test_help_begins_with_what_matters():
    lines = pydoc.plain(pydoc.render_doc(mx.AdamW)).splitlines()
    text = "\n".join(lines)
    assert lines[3].startswith(" |  AdamW(learning_rate, b1=0.9, b2=0.999, eps=1e-08,")
    assert (
        lines[5]
        == " |  Adam with decoupled weight decay, the usual first choice for transformers and most other models."
    )
    assert lines.index(" |  Args:") < 30
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

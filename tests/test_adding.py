"""What a new public class needs besides its code. Each test names the file to edit."""

import ast
import dataclasses
from pathlib import Path

import modulax
from modulax import schedules

from . import exports, field_docs
from .generated import concrete

ROOT = Path(__file__).parents[1]
OPTIMIZERS = [modulax.get(name).__name__ for name in modulax.available()]
# Where numbers are compared with a source outside modulax: transcribed equations, or released code.
SOURCES = ("test_equations*.py", "test_factored.py", "test_lbfgs.py", "test_released_*.py", "test_schedule*.py")
MADE_BY_METHODS = {"Clipped", "Stretched"}  # by `clip` and `over`


def test_every_transform_is_public():
    is_current = exports.EXPORTS.read_text(encoding="utf-8") == exports.exports()
    assert is_current, "src/modulax/__init__.pyi lacks transforms: `python -m tests.exports` adds them"


def test_every_state_is_public():
    is_current = exports.STATES.read_text(encoding="utf-8") == exports.states()
    assert is_current, "src/modulax/states.py is out of date: `python -m tests.exports` writes it"


def test_sentences_on_inherited_fields_are_those_of_their_groups():
    stale = [path.name for path, before, after in field_docs.rewritten() if before != after]
    assert not stale, f"docstrings in {stale} are out of date: `python -m tests.field_docs` writes them"


def test_an_optimizer_inherits_what_its_direction_has():
    """Each field and the sentence on it stand once: in a group from which both inherit."""
    again = {}
    for cls in map(modulax.get, modulax.available()):
        inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__dataclass_fields__", ())}
        own = {field.name for field in dataclasses.fields(cls)} - inherited
        if found := own & getattr(getattr(cls, "direction", None), "__dataclass_fields__", {}).keys():
            again[cls.__name__] = found
    # LAMB has one of the two options of Adam; the weight decay of `ScaleByStableAdam` may be None.
    assert again == {"LAMB": {"eps_root"}, "StableAdamW": {"weight_decay"}}


def test_every_optimizer_is_compared_with_its_equations_or_with_released_code():
    files = [file for pattern in SOURCES for file in sorted(Path(__file__).parent.glob(pattern))]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    named = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {modulax.get(file.stem).__name__ for file in (ROOT / "docs" / "references").glob("*.py")}
    curves = concrete(schedules, schedules.AbstractSchedule)
    missing = sorted({*OPTIMIZERS, *curves} - named - MADE_BY_METHODS)
    assert not missing, (
        f"nothing compares {missing} with a source outside modulax: add the equations to the file of the family, "
        "tests/test_equations*.py, or a trajectory of released code to tests/oracles/ and tests/test_released_code.py"
    )

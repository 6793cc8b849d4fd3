"""The public names, and the cost of importing them."""

import importlib.metadata
import inspect
import operator
import platform
import re
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import pytest

import modulax
from modulax._catalog.optax_names import no_such_name

from . import generated
from .generated import MODULES, public_names


def test_the_public_names_and_their_arguments_are_the_promised_ones():
    """Also defaults, and what is required of numbers. Compare a line that changes with what is documented."""
    promised = generated.PUBLIC_NAMES.read_text(encoding="utf-8").splitlines()
    found = generated.names().splitlines()
    changed = [f"- {x}" for x in promised if x not in found] + [f"+ {x}" for x in found if x not in promised]
    assert promised == found, "\n".join(("if this is meant, `python -m tests.generated`:", *changed))


def test_dir_and_version():
    """Completion leaves out what programs rarely name, such as roles, base classes and types of results."""
    assert modulax.__version__ == importlib.metadata.version("modulax")
    rare = {"AbstractTransform", "Attention", "Card", "EmptyState", "Findings", "LeafDescription", "number", "nested"}
    assert all(getattr(modulax, name) for name in rare)  # also once they have been used
    exported, listed = {*operator.attrgetter("__all__")(modulax)}, {*dir(modulax)}
    edges = {"checkpoint", "compat", "linen", "nnx", "planning", "sweeps", "testing"}
    assert listed - exported - {"jaxtyping"} == edges  # which the checks of annotations in the tests import there
    assert all(inspect.ismodule(getattr(modulax, name)) for name in edges)
    assert {"AdamW", "Chain", "Freeze", "describe", "groups", "states", "__version__"} <= listed
    assert rare <= exported - listed
    assert not [name for name in listed if name.startswith(("Abstract", "_")) and name != "__version__"]
    assert "`modulax.AbstractTransform`" in no_such_name("abstract_transform")  # suggestions have them


def test_without_flax_the_message_names_the_extra():
    program = """
import inspect, sys
sys.modules["flax"] = None
from modulax import *
import modulax as mx
print(len(inspect.getmembers(mx)) > 250, mx.sweeps.grid.__name__, mx.checkpoint.save.__name__)  # as `help` does
mx.linen"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert run.stdout == "True grid save\n"
    assert run.stderr.endswith("AttributeError: `modulax.linen` needs flax: `pip install modulax[nnx]`.\n")


def test_show_versions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def shown() -> dict[str, str]:
        modulax.show_versions()
        return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())

    found = shown()
    for package in ("modulax", "jax", "jaxlib", "equinox", "optree", "numpy", "flax", "orbax-checkpoint", "optax"):
        assert found[package] == importlib.metadata.version(package)
    assert found["Python"] == platform.python_version()
    assert found["devices"] == f"{len(jax.devices())} × {jax.devices()[0].device_kind} ({jax.default_backend()})"
    assert found["jax_enable_x64"] == "False"
    with jax.enable_x64(True):
        assert shown()["jax_enable_x64"] == "True"

    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    def broken() -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(jax, "devices", broken)
    assert (shown()["flax"], shown()["devices"]) == ("not installed", "none: no driver")


def test_the_docstring_of_a_class_names_every_field():
    for module in MODULES:
        for name in public_names(module):
            cls = getattr(module, name)
            is_module = inspect.isclass(cls) and issubclass(cls, eqx.Module)
            if is_module and not inspect.isabstract(cls) and not issubclass(cls, modulax.AbstractState):
                # Groups of fields leave the sentences to the groups that they extend; final classes have all of them.
                bases = cls.__mro__ if name.startswith("Abstract") else (cls,)
                text = "".join(base.__doc__ or "" for base in bases)
                undocumented = [p for p in inspect.signature(cls).parameters if f"{p}:" not in text]
                assert not undocumented, f"{name}: {undocumented}"


def test_the_page_of_authoring_has_all_of_its_names():
    table = (
        (Path(__file__).parents[1] / "docs" / "api" / "authoring.md").read_text(encoding="utf-8").partition("\n## ")[0]
    )
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    names = public_names(modulax.authoring)
    assert sorted(listed) == sorted(names)
    assert len(names) <= 60


def test_every_abstract_class_refuses_to_be_made():
    for name in public_names(modulax):
        cls = getattr(modulax, name)
        if inspect.isclass(cls) and name.startswith("Abstract") and name != "AbstractState":
            with pytest.raises(TypeError, match="abstract"):
                cls()

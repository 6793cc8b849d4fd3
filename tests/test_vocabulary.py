"""Everything that optax has is here, and whoever asks for it by optax's name is told where."""

import importlib
import operator
import pickle
import pkgutil

import optax
import pytest

import modulax
from modulax._catalog.optax_names import PLACES, RENAMED, home

from .instances import TRANSFORMS
from .loops import each
from .vocabulary import MODULES, NAMELESS, followers, functions, has_other_arguments, listed_arguments, names


def test_nothing_of_optax_is_missing():
    """The names are those that optax has when this runs: what a newer one adds is missed here first."""
    assert len(names()) > 400
    assert [path for path, there in names().items() if there is None and _last(path) not in NAMELESS] == []
    for there in filter(None, names().values()):
        operator.attrgetter(there)(modulax)


def test_every_other_name_is_one_of_optax():
    everything = {_last(path) for path in names()} | {"tree_utils"}
    assert RENAMED.keys() <= everything
    assert NAMELESS.keys() - {"ArrayTree"} <= everything


@pytest.mark.parametrize("module", ["assignment", "losses", "microbatching", "perturbations", "projections"])
def test_modules_of_functions_are_called_the_same(module: str):
    own = {_last(path): there for path, there in names().items() if path.startswith(f"{module}.")}
    assert own
    assert own == {name: f"{module}.{name}" for name in own}


@each(functions)
def test_arguments_are_called_the_same(path: str):
    """And have the same order and defaults, unless the page says what is otherwise; then it is."""
    assert has_other_arguments(path, functions()[path]) == (path in listed_arguments())


def test_what_the_page_says_of_arguments_is_about_functions_of_optax():
    assert 20 < len(listed_arguments() & functions().keys()) == len(listed_arguments())


def test_what_follows_optax_on_request_is_compared_with_optax():
    """Every class of the table has an instance that follows optax, with its counterpart."""
    compared = {i.cls.__name__ for i in TRANSFORMS if i.optax and getattr(i.make(), "follow", None) == "optax"}
    promised = {there.partition("(")[0].strip("`") for _, there, _ in followers()}
    assert promised - compared == {"ScheduleFree", "ScheduleFreeSGD"}  # in test_equations_averaging.py


@each(lambda: [name for name in vars(optax) if name in names() and not hasattr(modulax, name)])
def test_optax_names_are_answered_with_ours(name: str):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'") as caught:
        getattr(modulax, name)
    assert name in NAMELESS or str(caught.value).endswith(f"Did you mean `modulax.{names()[name]}`?")


@pytest.mark.parametrize(
    "owner,name,answer",
    [
        (modulax, "adamW", "Did you mean `modulax.AdamW`?"),
        (modulax, "ScaleByAdm", "Did you mean `ScaleByAdam`?"),
        (modulax, "tree_clip", "Did you mean `modulax.tree.clip`?"),
        (modulax, "tree_utils", "Did you mean `modulax.tree`?"),
        (modulax, "contrib", "those of `optax.contrib` too, are in `modulax` itself."),
        (modulax, "nothing_like_it", "has no attribute 'nothing_like_it'."),
        (modulax, "__wrapped__", "has no attribute '__wrapped__'."),
        (modulax.schedules, "cosine_decay_schedule", "Did you mean `modulax.schedules.CosineDecay`?"),
        (modulax.schedules, "Cosine", "Did you mean `CosineDecay`?"),
    ],
)
def test_a_wrong_name_is_answered(owner, name: str, answer: str):
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert str(caught.value).startswith(f"module '{owner.__name__}' has no attribute")
    assert str(caught.value).endswith(answer)


MODULES_OF_NAMES = sorted(
    name for _, name, _ in pkgutil.iter_modules(modulax.__path__) if name[0] != "_" and name != "compat"
)


@pytest.mark.parametrize("name", MODULES_OF_NAMES)
def test_every_public_module_explains_a_name_that_it_lacks(name: str):
    module = importlib.import_module(f"modulax.{name}")
    found = {x: getattr(module, x) for x in dir(module) if x[0] != "_"}
    public = [x for x, value in found.items() if getattr(value, "__module__", "").startswith("modulax.")]
    with pytest.raises(
        AttributeError, match=rf"'modulax\.{name}' has no attribute '{public[0]}x'\. Did you mean `"
    ) as caught:
        getattr(module, f"{public[0]}x")
    assert (caught.value.name, hasattr(module, "__wrapped__"), "__getattr__" in public) == (None, False, False)
    scope: dict[str, object] = {}
    exec(f"from modulax.{name} import *", scope)
    last = getattr(module, public[-1])
    assert scope[public[-1]] is pickle.loads(pickle.dumps(last)) is last


def test_the_place_that_is_asked_first_counts():
    assert home("clip") == "Clip"
    assert home("clip", "tree") == "tree.clip"
    assert home("no_such_thing") is None
    assert set(MODULES.values()) <= set(PLACES)


def _last(path: str) -> str:
    return path.rpartition(".")[2]

"""Optimizers by name, their cards, citations, and the pages that are made from them."""

import inspect
import operator
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import modulax as mx
from modulax._catalog.bibliography import bibliography, publications

from . import generated, vocabulary
from .functions import FUNCTION_DIFFERENCES
from .instances import DIFFERENCES, TRANSFORMS
from .probes import Proportional

TESTS = Path(__file__).parent


EXAMPLES = {type(transform): transform for transform in (instance.make() for instance in TRANSFORMS)}


def test_every_optimizer_is_found_by_its_name():
    public = [cls for _, cls in inspect.getmembers(mx, inspect.isclass) if issubclass(cls, mx.AbstractOptimizer)]
    named = {*public} - {mx.AbstractOptimizer, mx.FromFactory}
    for cls in named:
        assert mx.get(cls.__name__) is cls
    assert {mx.get(name) for name in mx.available()} == named


def test_names_may_be_written_as_in_optax():
    assert mx.get("adamw") is mx.get("AdamW") is mx.get("adam_w") is mx.get("Adam-W") is mx.AdamW
    cls: Any = mx.get("adamw")
    assert repr(cls(1e-3, weight_decay=0.1)) == repr(mx.AdamW(1e-3, weight_decay=0.1))


def test_transforms_are_found_by_their_names_and_by_those_of_optax():
    classes = [cls for _, cls in inspect.getmembers(mx, inspect.isclass) if issubclass(cls, mx.AbstractTransform)]
    for cls in classes:
        if not cls.__name__.startswith("Abstract"):
            assert mx.get(cls.__name__) is cls
    found = 0
    for path, there in vocabulary.names().items():
        x = operator.attrgetter(there)(mx) if there else None
        if x in classes and path != "ApplyEvery" and not x.__name__.startswith("Abstract"):
            assert mx.get(path) is mx.get(f"optax.{path}") is x
            found += 1
    assert found > 80
    assert mx.get("multi_transform") is mx.Partition
    assert mx.get("apply_every") is mx.get("ApplyEvery") is mx.ApplyEvery
    assert mx.get("contrib.schedule_free_adamw") is mx.get("schedule_free_adamw") is mx.ScheduleFreeAdamW


def test_available_takes_a_pattern():
    assert set(mx.available()) >= {"adam", "adamw", "lion", "sgd"}
    assert {"adam", "adamw"} <= set(mx.available("adam*")) < set(mx.available())
    assert mx.available("AdamW") == ["adamw"]
    assert mx.available("nothing*") == []


def test_an_unknown_name_is_refused_with_those_that_are_near():
    with pytest.raises(ValueError, match=r"no optimizer or transform `adamv`. Did you mean `Adam`, .*`AdamW`"):
        mx.get("adamv")
    with pytest.raises(ValueError, match=r"no optimizer or transform `scale_by_adm`. Did you mean `ScaleByAdam`, "):
        mx.get("scale_by_adm")
    with pytest.raises(ValueError, match=r"transform `qqqqq`. `available\(\)` lists them"):
        mx.get("qqqqq")
    for name, there in {"cosine_decay_schedule": "schedules.CosineDecay", "OptState": "AbstractState"}.items():
        with pytest.raises(ValueError, match=f"`{name}` is not an optimizer or a transform; it is `modulax.{there}`"):
            mx.get(name)
    with pytest.raises(
        ValueError, match=r"`modulax.card` describes optimizers, and `ScaleByAdam` is another transform"
    ):
        mx.card("scale_by_adam")


def test_a_card_says_what_an_optimizer_needs_and_stores():
    card = mx.card("adamw")
    assert (card.name, card.optimizer, card.state_bytes, card.extra) == ("adamw", mx.AdamW, 8.0, ())
    assert card.takes_complex
    assert "Kingma and Ba 2014" in card.references
    assert not card.takes_examples
    assert mx.card("dpsgd").takes_examples
    assert mx.card("prodigy").state_bytes == 16
    assert "obj_fn" in mx.card("sophia").extra
    for inner in (mx.AdaHessian(0.1), mx.SophiaG(0.1), mx.ScaleByAdaHessian()):
        outer = mx.Chain(mx.SkipSpikes(mx.SGD(0.1), by="loss"), mx.Lookahead(inner, 2, 0.5))
        assert (inner.required_arguments, outer.required_arguments) == (("obj_fn",), ("value", "obj_fn"))
    assert not mx.card("rprop").takes_complex
    assert mx.card(mx.SGD).state_bytes == 0
    assert mx.card(mx.SGD(0.1, momentum=0.9)).state_bytes == 4
    assert mx.card(mx.SGD(Proportional())).extra == ("value",)


@pytest.mark.parametrize("name", mx.available())
def test_every_card_is_true(name: str):
    card = mx.card(name)
    assert card.references, "whom is it from?"
    assert card.summary.endswith(".")
    instance = next(i for i in TRANSFORMS if type(i.make()) is card.optimizer)
    array = {"w": jnp.ones(2)}
    extra: Any = instance.extra(array, array) if callable(instance.extra) else instance.extra
    assert set(card.extra) <= set(extra)
    params = {name: jax.ShapeDtypeStruct((4, 3), jnp.complex64) for name in ("kernel", "bias")}
    if card.takes_complex:
        jax.eval_shape(instance.make().init, params)
    else:
        with pytest.raises(ValueError, match="is not defined for complex parameters"):
            jax.eval_shape(instance.make().init, params)


def test_every_citation_is_in_the_bibliography_and_is_used():
    classes = {type(instance.make()) for instance in TRANSFORMS}
    used = {key for cls in classes for key in publications(cls)}
    assert used == set(bibliography())
    known = {paper.url for paper in bibliography().values()}
    for cls in classes:
        references = (cls.__doc__ or "").partition("References:")[2]
        links = {url for url in re.findall(r"\]\((http\S+?)\)[,;.]", references) if "//github.com/" not in url}
        assert links <= known, f"`{cls.__name__}`: add {links - known} to src/modulax/_catalog/bibliography.toml"


def test_a_citation_names_the_papers_of_all_parts():
    text = mx.citation(mx.Chain(mx.ClipByGlobalNorm(1.0), mx.MultiSteps(mx.AdamW(1e-3), 2)))
    assert re.findall(r"@misc{(\w+),", text) == ["pascanu2013", "loshchilov2017", "kingma2014"]
    assert "  author = {Kingma, Diederik P. and Ba, Jimmy},\n" in text
    assert text.count("{") == text.count("}")
    assert mx.citation(mx.Identity()) == ""


def test_an_optimizer_takes_examples_where_its_transform_does():
    """It says so by itself, because building its transform is too much work for every trace."""
    for name in mx.available():
        optimizer = mx.get(name)
        (part,) = EXAMPLES[optimizer].each_part()
        assert EXAMPLES[optimizer].example_axes == part.transform.example_axes, name


@pytest.mark.parametrize("name", generated.PAGES)
def test_generated_pages_are_up_to_date(name: str):
    written = (generated.ROOT / name).read_text(encoding="utf-8")
    assert written == generated.page(name), "run `python -m tests.generated`"


@pytest.mark.parametrize("difference", [pytest.param(d, id=d.subject) for d in (*DIFFERENCES, *FUNCTION_DIFFERENCES)])
def test_a_difference_has_the_test_that_it_names(difference):
    file, _, name = difference.test.partition("::")
    assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")

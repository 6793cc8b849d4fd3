"""A state that is divided among groups of parameters, or joined, in a lenient restore: it goes on as it would have."""

import collections
import itertools
import re
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint, schedules

from .reach import EVERYTHING
from .settings import jax_defaults

PARAMS = {"b": np.linspace(-1, 1, 3).astype(np.float32), "w": np.linspace(-1, 2, 4).astype(np.float32).reshape(2, 2)}
RATE = schedules.Linear(0.1, 0.01, 9)

# Rules that treat each parameter for itself, so that groups with equal hyperparameters change nothing.
RULES = {
    "Adam": lambda: mx.Adam(RATE),
    "SGD": lambda: mx.SGD(RATE),
    "momentum": lambda: mx.SGD(RATE, momentum=0.9),
    "AMSGrad": lambda: mx.AMSGrad(RATE),
    "RMSProp": lambda: mx.RMSProp(RATE, momentum=0.9),
    "Adan": lambda: mx.Chain(mx.Clip(1.0), mx.Adan(RATE)),
    "two": lambda: mx.Chain(mx.Ema(0.9), mx.Lion(RATE)),
}
FORMS = {
    "whole": lambda t: t,
    "groups": lambda t: mx.groups(t, {"w": {"learning_rate": RATE}}),
    "parts": lambda t: mx.Partition({"p": t, "q": t}, {"b": "p", "w": "q"}),
    "part": lambda t: mx.Partition({"all": t}, {"b": "all", "w": "all"}),
}
# Keys of groups, and of a part of a chain that is a whole or groups.
KEYS = {"inner_states", "default", "w", "p", "q", "all", "partition", "chain", "adam", "sgd", "amsgrad", "rmsprop"}
CONTAINERS = {
    "none": lambda t: t,
    "MultiSteps": lambda t: mx.MultiSteps(t, 2),
    "ParamEMA": lambda t: mx.ParamEMA(t, 0.9),
    "Lookahead": lambda t: mx.Lookahead(t, 2, 0.5),
    "ApplyIfFinite": lambda t: mx.ApplyIfFinite(t, 3),
    "Chain": lambda t: mx.Chain(t, mx.Clip(1.0)),
    "ConditionallyMask": lambda t: mx.ConditionallyMask(t, lambda step: step < 9),  # with another `step`
}


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


def forms_of(rule: str, container: str) -> list[dict[str, Any]]:
    """Whole and divided: within the container, and with a container in each group."""
    around = CONTAINERS[container]
    within = {form: around(make(RULES[rule]())) for form, make in FORMS.items()}
    return [within, {form: make(around(RULES[rule]())) for form, make in FORMS.items() if form != "groups"}]


def blank(transform: Any, params: Any = PARAMS) -> Any:
    """The initial state with -1 in every array; nothing is compiled."""
    return jtu.tree_map(lambda x: np.full(x.shape, -1, x.dtype), jax.eval_shape(transform.init, params))


def marked(transform: Any, numbers: dict[Any, int]) -> dict[str, Any]:
    """A saved state with another number in every array, the same in each group and without groups."""
    return {
        name: np.full_like(x, numbers[tuple(key for key in name.split(".")[:-1] if key not in KEYS), name[-1]])
        for name, x in checkpoint.state_dict(blank(transform)).items()
    }


def moved(template: Any, state: Any, **kwargs: Any) -> Any:
    return checkpoint.load_state_dict(template, checkpoint.state_dict(state), strict=False, **kwargs)


@pytest.mark.filterwarnings("ignore:.*keeps parameters")
@pytest.mark.parametrize("rule", RULES)
def test_every_number_is_found_in_other_groups(rule: str):
    """Each way between a whole optimizer and groups, within a container and with containers in the groups."""
    i, names = [*RULES].index(rule), [*CONTAINERS]
    for container in names if EVERYTHING else {names[i % len(names)], names[(i + 2) % len(names)]}:
        for forms in forms_of(rule, container):
            numbers = collections.defaultdict[Any, int](itertools.count(1).__next__)
            saved = {form: marked(transform, numbers) for form, transform in forms.items()}
            for old, new in itertools.permutations(forms, 2):
                found, report = checkpoint.load_state_dict(blank(forms[new]), saved[old], strict=False)
                assert (report.fresh, report.remarks) == ((), ()), (container, old, new, report)
                for name, x in checkpoint.state_dict(found).items():
                    np.testing.assert_array_equal(x, saved[new][name], err_msg=f"{container} {old} {new} {name}")


def after(transform: Any, steps: int = 3) -> Any:
    """The state after some steps."""

    @jax.jit
    def run(params: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            params, state = carry
            grads = jtu.tree_map(lambda p: jnp.sin(3 * p + i) + 0.1, PARAMS)
            return transform.step(grads, state, params), None

        return jax.lax.scan(step, (params, transform.init(params)), jnp.arange(steps))[0][1]

    return run(jtu.tree_map(jnp.asarray, PARAMS))


def test_a_state_goes_on_as_it_would_have_in_other_groups():
    """The restored state is the one that the new optimizer would have after the same steps."""
    for forms in forms_of("Adam", "MultiSteps"):
        states = {form: after(transform) for form, transform in forms.items()}
        for old, new in itertools.permutations(forms, 2):
            found, _ = moved(blank(forms[new]), states[old])
            for x, y in zip(jtu.tree_leaves(found), jtu.tree_leaves(states[new]), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7, err_msg=f"{old} {new}")


@pytest.mark.filterwarnings("ignore:.*keeps parameters")
@pytest.mark.parametrize("container", CONTAINERS)
def test_groups_and_a_container_are_added_and_removed_together(container: str):
    adam, around = RULES["Adam"](), CONTAINERS[container]
    both = [around(FORMS["groups"](adam)), FORMS["parts"](around(adam))]
    for before, then in [(adam, x) for x in both] + [(x, adam) for x in both]:
        state = jtu.tree_map(lambda x: np.full_like(x, 3), blank(before))
        found, report = moved(blank(then), state)
        flat = checkpoint.state_dict(found)
        adams = [name.removesuffix("inner.parts.scale_by_adam.count") for name in flat if name.endswith("adam.count")]
        own = {name for where in adams for name in flat if name.startswith((f"{where}inner.", f"{where}step"))}
        assert {float(np.max(flat[name])) for name in own} == {3}, report
        assert not [name for name in flat.keys() - own if np.any(flat[name] == 3)], report


def in_nnx(optimizer: Any) -> Any:
    """The state of an optimizer of a linear layer in Flax, where only the names are known."""
    return nnx.as_pure(nnx.state(modulax.nnx.Optimizer(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), optimizer)))


def test_groups_in_nnx():
    adam = mx.Adam(RATE)
    whole, groups = (in_nnx(x) for x in (adam, mx.groups(adam, {"kernel": {"learning_rate": 0.3}})))
    for old, new in ((whole, groups), (groups, whole)):
        found, report = moved(new, jtu.tree_map(lambda x: jnp.full_like(x, 3), old))
        state = {x: y for x, y in checkpoint.state_dict(found).items() if "scale_by_adam" in x or x.endswith(".step")}
        counts = [x for x in state if x.endswith("count")]
        assert len(counts) == (2 if new is groups else 1)
        assert {name: float(np.max(x)) for name, x in state.items() if not np.all(x == 3)} == {}, report


# --- Several saved counts for one state ----------------------------------------------------------------------


def with_counts(state: Any, *counts: int) -> dict[str, Any]:
    """A saved state with 3 in every moment, and these in the counts of the rules in the order of the names."""
    flat = {name: np.full_like(x, 3) for name, x in checkpoint.state_dict(state).items()}
    names = sorted(name for name in flat if name.endswith("scale_by_adam.count"))
    return flat | {name: np.full_like(flat[name], x) for name, x in zip(names, counts, strict=True)}


def test_groups_with_different_counts_are_not_joined(tmp_path: Path):
    """From memory and from a disk. No rule for `rename` is proposed that would do the same without the count."""
    adam = mx.Adam(RATE)
    saved = with_counts(blank(FORMS["groups"](adam)), 7, 8)
    checkpoint.save(tmp_path / "a", saved)
    template = blank(adam)
    for found, report in (
        checkpoint.load_state_dict(template, saved, strict=False),
        checkpoint.restore(tmp_path / "a", template, rename=lambda name: name.replace("\\.", "."), strict=False),
    ):
        assert float(found.step) == 3
        assert {float(np.max(x)) for x in jtu.tree_leaves(found.inner)} == {-1}
        assert report.restored.keys() == {"step"}
        (remark,) = report.remarks
        sources = [f"`inner_states.{key}.inner.parts.scale_by_adam.count`" for key in ("default", "w")]
        assert all(source in remark for source in sources)
        assert remark.endswith(" differ: `inner.parts.scale_by_adam.count` and the moments next to it.")
        assert remark in str(report)
        assert report.proposed == {}
    saved = with_counts(blank(FORMS["groups"](adam)), 7, 7)
    equal, _ = checkpoint.load_state_dict(template, saved, strict=False)
    assert float(equal.inner["scale_by_adam"].count) == 7


def test_a_number_that_one_group_lacks_is_not_taken_from_another():
    adam = mx.Adam(RATE)
    saved = with_counts(blank(FORMS["groups"](adam)), 7, 7)
    del saved["inner_states.w.inner.parts.scale_by_adam.count"]
    found, report = checkpoint.load_state_dict(blank(adam), saved, strict=False)
    assert {float(np.max(x)) for x in jtu.tree_leaves(found.inner)} == {-1}
    assert len(report.remarks) == 1


def test_step_counts_without_moments_that_differ_are_not_joined():
    sgd = mx.SGD(RATE)
    saved = {"inner_states.default.step": np.array(3, np.int32), "inner_states.w.step": np.array(4, np.int32)}
    found, report = checkpoint.load_state_dict(blank(sgd), saved, strict=False)
    assert float(found.step) == -1
    assert report.remarks == ("Fresh, because `inner_states.default.step`, `inner_states.w.step` differ: `step`.",)


# --- A count without its moments, and moments without their count ----------------------------------------------


def test_a_count_is_not_restored_without_its_moments():
    rule = mx.ScaleByAdam()
    saved = with_counts(blank(mx.Chain(rule)), 7)
    renamed = {"c": PARAMS["b"], "v": PARAMS["w"]}
    found, report = checkpoint.load_state_dict(blank(mx.Chain(rule), renamed), saved, strict=False)
    assert report.restored == {}
    assert {float(np.max(x)) for x in jtu.tree_leaves(found)} == {-1}
    # By the rule that is proposed, it is.
    found, report = checkpoint.load_state_dict(blank(mx.Chain(rule), renamed), saved, rename=report.proposed)
    assert {float(np.max(x)) for x in jtu.tree_leaves(found)} == {3, 7}

    muon, parts = mx.Muon(0.1), mx.Partition({"s": mx.SGD(0.1, momentum=0.9), "a": mx.Adam(0.1)}, {"b": "a", "w": "s"})
    for old, new in ((muon, parts), (parts, muon)):
        _, report = moved(blank(new), blank(old))
        places = {re.sub(r"\.(mu|nu|trace)\..*|\.count$", "", name) for name in report.restored}
        assert not [name for name in report.restored if "scale_by_muon" in name or "trace" in name], report
        assert [place for place in places if place.endswith("scale_by_adam")]
        assert not report.remarks


def test_a_state_in_part_is_remarked_on():
    """Moments of thawed parameters, for which a restored count would be wrong; a count that the checkpoint lacks."""
    adam = mx.Adam(RATE)
    frozen = mx.selective_transform(adam, freeze_mask={"b": True, "w": False})
    saved = with_counts(blank(frozen), 7)
    where = "inner.parts.scale_by_adam"
    found, report = checkpoint.load_state_dict(blank(adam), saved, strict=False)
    kept, lacking = (f"`{where}.mu.{name}`, `{where}.nu.{name}`" for name in "wb")
    assert report.remarks == (
        f"{kept}, `{where}.count` begin fresh together with {lacking}, for which `{where}.count` would be wrong. To "
        f"keep the former, give new parameters a group of their own in a `Partition`.",
    )
    assert {float(np.max(x)) for x in jtu.tree_leaves(found.inner)} == {-1}
    assert (int(found.step), report.proposed) == (3, {})  # schedules go on

    # In a group of its own, what is thawed has its own count.
    found, report = checkpoint.load_state_dict(blank(FORMS["parts"](adam)), saved, strict=False)
    assert (report.remarks, report.unused) == ((), ())
    thawed, trained = (found.inner_states[key] for key in "pq")
    assert {float(np.max(x)) for x in jtu.tree_leaves(thawed)} == {-1}
    assert sorted({float(np.max(x)) for x in jtu.tree_leaves(trained)}) == [3, 7]

    lacks = {name: x for name, x in with_counts(blank(adam), 7).items() if not name.endswith("count")}
    _, report = checkpoint.load_state_dict(blank(adam), lacks, strict=False)
    assert report.remarks == (f"Fresh next to restored moments: `{where}.count`.",)


@pytest.mark.parametrize("container", ["ParamEMA", "Chain"])
def test_groups_thaw_by_carry(container: str):
    """`carry` into `groups(optimizer, {trained: {}})`: bit-equal moments, fresh ones with a count of their own."""
    around = CONTAINERS[container]
    frozen = around(mx.selective_transform(mx.AdamW(RATE), freeze_mask=mx.by_path({"b": True, "*": False})))
    thawed = around(mx.groups(mx.AdamW(RATE), {"w": {}}))
    params, state = PARAMS, frozen.init(PARAMS)
    for _ in range(3):
        params, state = frozen.step(PARAMS, state, params)
    found, _ = checkpoint.carry(thawed, params, frozen, state)
    for name in ("mu", "nu"):
        chex.assert_trees_all_equal(mx.tree.get(found, f"{name}.w"), mx.tree.get(state, f"{name}.w"))
        assert not mx.tree.get(found, f"{name}.b").any()
    assert [int(x) for _, x in mx.tree.get_all_with_path(found, "scale_by_adam.count")] == [3, 0]
    assert [int(x) for path, x in mx.tree.get_all_with_path(found, "step") if "inner_states" in path] == [3, 3]


def test_what_is_thawed_takes_the_steps_of_a_fresh_optimizer():
    """Not steps several times too long, by a count of 1000 steps; nor by the count of a rule with other moments."""
    params, adam = {"a": jnp.ones(2), "b": jnp.ones(2)}, mx.AdamW(0.1)
    frozen = mx.Masked(adam, {"a": False, "b": True}, otherwise="zero")
    saved = {"parts.x.mu.a": np.ones(2, np.float32), "parts.x.count": np.int32(200)}
    rule = mx.Chain(x=mx.ScaleByAdam())
    for optimizer, flat, tree in (
        (adam, with_counts(blank(frozen, params), 1000), params),
        (rule, saved, {"a": params["a"]}),
    ):
        start = optimizer.init(tree)
        state, report = checkpoint.load_state_dict(start, flat, strict=False)
        chex.assert_trees_all_equal(mx.tree.set(state, step=0) if optimizer is adam else state, start)
        assert len(report.remarks) == 1
    # Averages of parameters begin as copies, so that each one goes on for itself.
    averaged = mx.ParamEMA(mx.SGD(RATE), 0.9)
    flat = checkpoint.state_dict(blank(averaged, {"a": params["a"]}))
    state, report = checkpoint.load_state_dict(averaged.init(params), flat, strict=False)
    assert float(state.ema["a"][0]) == float(state.count) == -1
    assert (report.fresh, len(report.remarks)) == (("ema.b",), 1)
    # Those of gradients, which have the same name, begin with zeros.
    _, report = moved(mx.Ema(0.9).init(params), mx.Ema(0.9).init({"a": params["a"]}))
    assert report.restored == {}


AROUND = {
    "ApplyIfFinite": lambda t: mx.ApplyIfFinite(t, 3),
    "SkipSpikes": lambda t: mx.SkipSpikes(t),
    "ParamEMA": lambda t: mx.ParamEMA(t, 0.9),
    "ParamAverage": lambda t: mx.ParamAverage(t),
    "MasterWeights": lambda t: mx.MasterWeights(t),
    "LossScaling": lambda t: mx.LossScaling(t),
    "StochasticRounding": lambda t: mx.StochasticRounding(t, 0),
    "SplitRealAndImaginary": lambda t: mx.SplitRealAndImaginary(t),
    "ConditionallyMask": lambda t: mx.ConditionallyMask(t, lambda step: step < 9),
    "MultiSteps(ParamEMA)": lambda t: mx.MultiSteps(mx.ParamEMA(t, 0.9), 2),
}


def restored_with_flatten(old: Any, new: Any) -> tuple[set[str], Any]:
    """Which of the count and the moments are restored from an optimizer to another one, and the report."""
    saved, template = (
        jtu.tree_map(lambda x: np.full(x.shape, 3, x.dtype), jax.eval_shape(x.init, PARAMS)) for x in (old, new)
    )
    _, report = moved(template, saved)
    fields = (re.search(r"scale_by_adam\.(count|mu|nu)", name) for name in report.restored)
    return {found[1] for found in fields if found}, report


@pytest.mark.filterwarnings("ignore:.*keeps parameters")
def test_flatten_takes_a_whole_state_or_none():
    """Its moments are vectors: from and to arrays, the count is not restored either; another container changes none."""
    adam = mx.Adam(RATE)
    flat = mx.Flatten(adam)
    every = {"whole": lambda t: t} | AROUND
    for name, around in every.items():
        for old, new in ((around(adam), flat), (flat, around(adam)), (around(adam), around(flat))):
            found, report = restored_with_flatten(old, new)
            assert (found, report.proposed) == (set(), {}), (name, report)
        for old, new in ((around(flat), flat), (flat, around(flat))):
            found, report = restored_with_flatten(old, new)
            assert (found, report.remarks) == ({"count", "mu", "nu"}, ()), (name, report)


def test_the_clock_of_schedules_is_that_of_the_same_optimizer():
    """Not of one around it; where there is none to be read, schedules begin again, and the report says so."""
    adam = mx.AdamW(mx.schedules.Linear(0.1, 0.01, 20))
    scheduled, injected = mx.Scheduled(mx.Chain(mx.Clip(1.0), adam)), mx.ParamEMA(mx.Injected(adam))
    saved = checkpoint.state_dict(blank(scheduled)) | {"step": np.int32(3), "inner.parts.adamw.step": np.int32(10)}
    found, report = checkpoint.load_state_dict(blank(adam), saved, strict=False)
    assert (int(found.step), report.unused, report.remarks) == (10, ("step",), ())
    found, report = checkpoint.load_state_dict(blank(injected), checkpoint.state_dict(found), strict=False)
    assert (int(found.inner_state.count), int(found.inner_state.inner_state.step), report.remarks) == (10, 10, ())
    for template, old, clock in ((scheduled, adam, "step"), (adam, mx.ScaleByAdam(), "step")):
        _, report = moved(blank(template), blank(old))
        assert report.remarks == (f"Fresh around restored states: `{clock}`. Schedules that follow it begin again.",)
        assert report.fresh == (clock,)


# --- Proposed rules --------------------------------------------------------------------------------------------


def test_no_rule_swaps_two_counts_or_fills_one_without_its_moments():
    adam = mx.Adam(RATE)
    for old, new in ((adam, mx.Flatten(adam)), (mx.Flatten(adam), adam)):
        with pytest.raises(ValueError, match="do not agree") as error:
            checkpoint.load_state_dict(blank(new), checkpoint.state_dict(blank(old)))
        assert "Shapes agree" not in str(error.value)
    # The count of a renamed part goes with its moments, or not at all.
    rule = mx.ScaleByAdam()
    saved = checkpoint.state_dict(blank(mx.Chain(a=rule)))
    for params, proposed in ((PARAMS, {"a": "b"}), ({"b": np.zeros(5)}, {})):
        _, report = checkpoint.load_state_dict(blank(mx.Chain(b=rule), params), saved, strict=False)
        assert report.proposed == proposed
    # A scalar parameter may have another name.
    before, then = ({"p": {key: np.zeros(())}, "s": blank(adam, {key: np.zeros(())})} for key in "ab")
    with pytest.raises(ValueError, match=r"rename=\{'a': 'b'\}"):
        checkpoint.load_state_dict(then, checkpoint.state_dict(before))


def test_no_rule_makes_a_field_of_another_one_or_needs_a_cast():
    average, accumulated = (blank(x) for x in (mx.ParamEMA(mx.SGD(RATE)), mx.MultiSteps(mx.SGD(RATE), 4)))
    for template, saved in itertools.permutations((average, accumulated)):
        assert moved(template, saved)[1].proposed == {}  # without `strict`, the inner state is found
        with pytest.raises(ValueError, match=r"agree with `rename=\{'inner\w*': 'inner\w*'\}`"):
            checkpoint.load_state_dict(template, checkpoint.state_dict(saved))
    assert moved({"a": jnp.ones(2)}, {"b": jnp.ones(2, jnp.bfloat16)})[1].proposed == {}
    # Parameters have any names, also those of fields; a random key is stored as integers.
    tree = {"mu": jnp.ones(2), "key": jax.random.key(0), "n": 3}
    assert moved({"nu": jnp.ones(2), "seed": jax.random.key(1), "n": 4}, tree)[1].proposed == {
        "mu": "nu",
        "key": "seed",
    }


def test_a_proposed_rename_can_be_passed():
    """A rule that would rename what is right too is proposed for whole names, and the user's rules are part of it."""
    params = {"a": np.zeros(3), "b": np.zeros(4), "c": np.zeros(5)}
    before, then = (
        blank(mx.Partition({"x": mx.Adam(0.1), "y": mx.Adam(0.2)}, {"a": "x", "b": b, "c": "y"}), params) for b in "xy"
    )
    saved = with_counts(before, 7, 7)
    changed = {name.replace("inner_states.y", "inner_states.z"): x for name, x in saved.items()}
    for flat, rules in ((saved, None), (changed, {"z": "y"})):
        with pytest.raises(ValueError, match=r"Shapes agree with `rename=.*inner_states\.x\..*\.mu\.b'"):
            checkpoint.load_state_dict(then, flat, rename=rules)
        _, report = checkpoint.load_state_dict(then, flat, rename=rules, strict=False)
        assert (len(report.fresh), len(report.remarks)) == (5, 1)
        for strict in (True, False):
            found, _ = checkpoint.load_state_dict(then, flat, rename=report.proposed, strict=strict)
            assert all(np.all(x == (7 if n.endswith("count") else 3)) for n, x in checkpoint.state_dict(found).items())
    # Beside a function of the user, a mapping can't be passed.
    _, report = checkpoint.load_state_dict(then, changed, rename=lambda x: x.replace(".z.", ".y."), strict=False)
    assert report.proposed == {}


def nested(names: list[str]) -> dict[str, Any]:
    """Dictionaries with leaves of these dotted names, each of another value, all of one shape but for biases."""
    tree: dict[str, Any] = {}
    for i, name in enumerate(names):
        *path, last = name.split(".")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[last] = np.full((2,) if last == "bias" else (2, 2), i + 1.0, np.float32)
    return tree


# Names of parameters before and after they were moved, in this order, and the rule for each; none if it is ambiguous.
MOVED = (
    (["up", "down"], ["mlp.up", "mlp.down"], {"up": "mlp.up", "down": "mlp.down"}),
    (["params.a", "params.c"], ["a", "c"], {"params": ""}),
    (["layers.0.w", "layers.1.w"], ["mlp.layers.0.w", "mlp.layers.1.w"], {"layers": "mlp.layers"}),
    (["q", "k"], ["q.w", "k.w"], {"q": "q.w", "k": "k.w"}),
    (["q.a", "q.b", "k.a", "k.b"], ["n.q.a", "n.q.b", "n.k.a", "n.k.b"], {"q": "n.q", "k": "n.k"}),
    (["x.w", "x.bias", "y.w", "y.bias"], ["n.x.w", "n.x.bias", "n.y.w", "n.y.bias"], {"x": "n.x", "y": "n.y"}),
    # `w` alone also names what has not moved, and so does `a` for what becomes `b` inside it.
    (["x.w", "y.w", "w"], ["x.n.w", "y.n.w", "w"], {"x": "x.n", "y": "y.n"}),
    (["a.a", "a.c"], ["a.b", "a.c"], {"a.a": "a.b"}),
    (["up", "down"], ["mlp.down", "mlp.gate"], {}),
    (["a", "b"], ["n.a", "m.b"], {}),
    (["a", "b"], ["n.c", "n.d"], {}),
)


def test_parameters_of_one_shape_that_are_moved_together_are_not_exchanged():
    adam = mx.Adam(RATE)
    for before, then, rules in MOVED:
        old, new = nested(before), nested(then)
        for around in (lambda tree: tree, lambda tree: (tree, blank(adam, tree))):
            _, report = moved(around(new), around(old))
            assert report.proposed == rules, (before, then)
            if rules:
                (found, *_), report = checkpoint.load_state_dict(
                    (new, around(new)), checkpoint.state_dict((old, around(old))), rename=rules
                )
                jax.tree.map(np.testing.assert_array_equal, found, new)


def test_a_proposed_rename_never_exchanges_parameters():
    """Modules that are moved into another one, out of one, or renamed, among others of their names and shapes."""
    rng, followed = np.random.default_rng(0), 0
    for _ in range(200):
        drawn = {".".join(rng.choice(list("abcw"), rng.integers(1, 4))) for _ in range(rng.integers(1, 6))}
        names = sorted(name for name in drawn if not any(name.startswith(x + ".") for x in drawn))
        where = names[rng.integers(len(names))].split(".")
        stop = rng.integers(len(where))
        old = where[: stop + 1]
        new = [[*old, "n"], [*old[:-1], "n", old[-1]], [*old[:-1], "n"], old[:-1]][rng.integers(4)]
        then = [".".join([*new, *x[len(old) :]] if x[: len(old)] == old else x) for x in (y.split(".") for y in names)]
        is_tree = len(set(then)) == len(then) and not any(x.startswith(f"{y}.") or not x for x in then for y in then)
        if not is_tree or set(names) == set(then):
            continue
        trees = [{"p": nested(x), "s": {"mu": nested(x), "nu": nested(x)}} for x in (names, then)]
        saved = checkpoint.state_dict(trees[0])
        blank_tree = jax.tree.map(np.zeros_like, trees[1])
        _, report = checkpoint.load_state_dict(blank_tree, saved, strict=False)
        found, report = checkpoint.load_state_dict(blank_tree, saved, rename=report.proposed, strict=False)
        is_right = jax.tree.map(lambda x, y: bool((x == y).all() or not x.any()), found, trees[1])
        assert all(jtu.tree_leaves(is_right)), (names, then, report)
        followed += not report.fresh
    assert followed > 100


def test_a_proposed_rename_fills_all_that_a_state_has_for_a_parameter():
    """The scales of two quantized arrays, or their row means, may have one shape though the arrays have not."""

    def params(**columns: int) -> dict[str, np.ndarray]:
        return {name: np.zeros((64, n), np.float32) for name, n in columns.items()}

    for optimizer in (mx.LowBit(mx.AdamW(0.1)), mx.Adafactor(0.1, min_dim_size_to_factor=8)):
        saved = {name: np.asarray(x) for name, x in checkpoint.state_dict(optimizer.init(params(a=128, c=96))).items()}
        for tree, rules in (
            ({"net": params(a=128, c=96)}, {"a": "net.a", "c": "net.c"}),
            (params(a=128, y=96), {"c": "y"}),
            ({"net": params(a=128, c=112)}, {"a": "net.a"}),
            (params(a=128, y=112), {}),
            (params(a=128, y=112, z=112), {}),
        ):
            template = optimizer.init(tree)
            _, report = checkpoint.load_state_dict(template, saved, strict=False)
            assert report.proposed == rules
            checkpoint.load_state_dict(template, saved, rename=rules, strict=False)
    # A rule for fewer names would also fill a leaf of another shape.
    arrays = (np.zeros(n, np.float32) for n in (2, 3, 2, 4))
    before, then = ({"x": {key: next(arrays)}, "y": {key: next(arrays)}} for key in "wv")
    assert moved(then, before)[1].proposed == {"x.w": "x.v"}

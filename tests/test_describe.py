"""The dry run: a row for each parameter, and exact sizes."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax
from modulax import by_path, schedules

from .instances import TRANSFORMS, Instance
from .instances.curves import STATEFUL


def params():
    return {"w": jnp.ones((3, 4)), "bias": jnp.ones(4, jnp.bfloat16), "scalar": jnp.ones(())}


def columns(optimizer, *names, tree=None):
    rows = modulax.describe(optimizer, tree or params()).leaves
    return tuple({row.path: getattr(row, name) for row in rows} for name in names)


def column(optimizer, name, tree=None):
    return columns(optimizer, name, tree=tree)[0]


def test_the_table_reads_well():
    optimizer = modulax.AdamW(1e-3, weight_decay=0.1, mask=by_path({"w": True, "*": False}))
    assert str(modulax.describe(optimizer, params())) == "\n".join(
        [
            "path    shape         learning rate  weight decay  state bytes",
            "--------------------------------------------------------------",
            "bias    bfloat16[4]   0.001                                 24",
            "scalar  float32[]     0.001                                  8",
            "w       float32[3,4]  0.001          0.1                    96",
            "",
            "17 parameters, 136 bytes of state (8 of them shared)",
            "note: a learning rate of 0.001 is too small for parameters in bfloat16, `bias`: where their magnitude "
            "exceeds 0.5, a step of that size is rounded away. Wrap the optimizer in `MasterWeights(...)` or in "
            "`StochasticRounding(...)`.",
        ]
    )


def test_groups_are_the_labels_of_partitions_and_what_is_frozen():
    optimizer = modulax.Chain(
        modulax.Partition(
            {"matrix": modulax.Lion(1e-4), "rest": modulax.AdamW(schedules.Linear(0.0, 1.0, 5))},
            by_path({"w": "matrix", "*": "rest"}),
        ),
        modulax.Freeze(by_path({"scalar": True, "*": False})),
    )
    assert column(optimizer, "group") == {"bias": "rest", "scalar": "frozen", "w": "matrix"}
    assert column(optimizer, "learning_rate") == {"bias": "0 → 1", "scalar": "", "w": "0.0001"}
    assert column(optimizer, "weight_decay") == {"bias": "0.0001", "scalar": "", "w": "0.001"}
    # A decay after the `Freeze` moves what it froze, and one of 0 doesn't.
    for decay, group in ((0.1, ""), (0.0, "frozen")):
        decayed = modulax.Chain(optimizer[1], modulax.AdamW(1.0, weight_decay=decay))
        assert column(decayed, "group") == {"bias": "", "scalar": group, "w": ""}


def test_it_looks_through_containers():
    """But the adversary of SAM is no optimizer of the parameters."""
    adam = modulax.AdamW(0.5)
    around: list[Any] = [modulax.MultiSteps(adam, 2), modulax.Injected(adam), modulax.Scheduled(adam)]
    around += [modulax.Masked(adam, by_path({"*": True})), modulax.Lookahead(adam, 5, 0.5)]
    for optimizer in (*around, modulax.SAM(adam, modulax.SGD(0.25))):
        assert set(column(optimizer, "learning_rate").values()) == {"0.5"}, optimizer


@pytest.mark.parametrize("instance", {i.cls: i for i in reversed(TRANSFORMS)}.values(), ids=str)
def test_the_bytes_are_those_of_the_state(instance: Instance):
    transform, tree = instance.make(), params()
    description = modulax.describe(transform, tree)
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(transform.init, tree))]
    assert description.total_bytes == sum(sizes)
    assert description.total_bytes == description.shared_bytes + sum(row.state_bytes for row in description.leaves)


def test_a_whole_model_or_its_shapes_will_do(key):
    model = eqx.nn.MLP(2, 1, 4, 1, key=key)
    whole = str(modulax.describe(modulax.Adam(1e-3), model))
    shapes = eqx.filter_eval_shape(lambda: eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)))
    assert str(modulax.describe(modulax.Adam(1e-3), shapes)) == whole
    double = jax.tree.map(lambda x: np.ones(x.shape) if eqx.is_array(x) else x, model)  # float32 in a program
    assert str(modulax.describe(modulax.Adam(1e-3), double)) == whole
    assert "layers.0.weight" in whole


def test_groups_of_nested_partitions_are_read_from_the_outside():
    inner = modulax.Partition(
        {"a": modulax.SGD(0.5), "b": modulax.AdamW(0.25, weight_decay=0.125)}, by_path({"w": "a", "*": "b"})
    )
    outer = modulax.Partition(
        {"slow": modulax.Lion(0.1), "fast": modulax.Chain(modulax.Clip(1.0), inner)},
        by_path({"scalar": "slow", "*": "fast"}),
    )
    assert column(outer, "group") == {"bias": "fast/b", "scalar": "slow", "w": "fast/a"}
    assert column(outer, "learning_rate") == {"bias": "0.25", "scalar": "0.1", "w": "0.5"}
    assert column(outer, "weight_decay") == {"bias": "0.125", "scalar": "0.001", "w": ""}
    around = modulax.Masked(modulax.MultiSteps(outer, 2), by_path({"bias": False, "*": True}))
    assert column(around, "group") == {"bias": "", "scalar": "slow", "w": "fast/a"}


def test_a_part_that_is_masked_out_has_no_rate():
    mask = by_path({"w": True, "*": False})
    assert column(modulax.Masked(modulax.SGD(0.5), mask), "learning_rate") == {"bias": "", "scalar": "", "w": "0.5"}
    frozen = modulax.Chain(modulax.SGD(0.5), modulax.Freeze(mask))
    assert column(frozen, "learning_rate") == {"bias": "0.5", "scalar": "0.5", "w": ""}
    decayed = modulax.Adan(0.5, weight_decay=0.25, mask=mask)
    assert column(decayed, "weight_decay") == {"bias": "", "scalar": "", "w": "0.25"}


@pytest.mark.parametrize("mask", [False, True])
def test_every_column_with_a_schedule_has_its_values_where_the_number_was(mask: bool):
    """In all optimizers with a weight decay, on the same leaves as without schedules."""
    chosen = by_path({"w": True, "*": False}) if mask else None
    for name in modulax.available():
        cls: Any = modulax.get(name)
        fields = {field.name for field in dataclasses.fields(cls)}
        if {"weight_decay", "mask"} <= fields:
            plain = cls(weight_decay=0.25, mask=chosen, learning_rate=0.5)
            scheduled = plain.replace(
                weight_decay=schedules.Linear(0.25, 0.5, 9), learning_rate=schedules.Linear(0.5, 0.1, 9)
            )
            decays, rates = columns(plain, "weight_decay", "learning_rate")
            assert decays["w"] == "0.25", name
            expected = (
                {path: x.replace("0.25", "0.25 → 0.5") for path, x in decays.items()},
                {path: x.replace("0.5", "0.5 → 0.1") for path, x in rates.items()},
            )
            assert columns(scheduled, "weight_decay", "learning_rate") == expected, name


def test_what_an_optimizer_computes_from_schedules_has_its_values():
    """In a function, an optimizer of one's own, and those that pass a number on under another name, or computed."""
    line, tree = schedules.Linear(0.0, 1.0, 10), {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}

    def make(rate: Any, decay: Any = 0.5) -> modulax.Chain:
        return modulax.Chain(modulax.AdamW(2 * rate, weight_decay=decay), modulax.Scale(0.5))

    def cells(optimizer: Any, state: Any = None) -> set[tuple[str, str]]:
        return {(row.learning_rate, row.weight_decay) for row in modulax.describe(optimizer, tree, state).leaves}

    of_function = modulax.FromFactory(make, rate=line, decay=line)
    assert cells(of_function) == {("0 → 1", "0 → 1")}
    assert modulax.describe(of_function, tree).notes == tuple(
        f"`{x}` follows `Linear`: 0 → 1." for x in ("rate", "decay")
    )
    _, state = of_function.update(tree, of_function.init(tree), tree)
    assert cells(of_function, state) == {("0.1", "0.1")}
    assert cells(modulax.inject_hyperparams(make)(line)) == {("0 → 1", "0.5")}
    assert cells(modulax.FromFactory(lambda rate: modulax.FromFactory(make, rate=3 * rate), rate=line)) == {
        ("0 → 3", "0.5")
    }
    assert cells(modulax.Muon(0.1, adam_learning_rate=line)) == {("0.1", "0.0"), ("0 → 1", "0.0")}
    assert cells(modulax.ScheduleFreeSGD(line)) == {("0 → 1", "")}
    assert cells(modulax.Fromage(line)) == {("0 → 0.71", "0 → -0.29")}
    stateful = STATEFUL[0].make()
    name = type(stateful).__name__
    assert cells(modulax.FromFactory(make, rate=stateful)) == {(f"f({name}) × 0.5", "0.5")}
    assert cells(modulax.FromFactory(modulax.SGD, learning_rate=stateful)) == {(name, "")}


def test_factors_that_follow_multiply_the_learning_rate():
    """Those before it scale the gradients. Those inside an optimizer follow a rate too, or belong to its algorithm."""
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}

    def rates(*parts: Any) -> list[str]:
        return [row.learning_rate for row in modulax.describe(modulax.Chain(*parts), params).leaves]

    half = modulax.Masked(modulax.Scale(0.5), modulax.by_path({"w": True, "b": False}))
    assert rates(modulax.Scale(3.0), modulax.AdamW(1e-3), half) == ["0.001", "0.0005"]
    assert rates(half, modulax.ReduceOnPlateau(), modulax.AdamW(1e-3)) == ["0.001"] * 2
    assert rates(modulax.AdamW(1e-3), modulax.ReduceOnPlateau()) == ["0.001 × ReduceOnPlateau"] * 2
    line = schedules.Linear(1.0, 0.0, 10)
    assert rates(modulax.Adafactor(0.1), modulax.ScaleBySchedule(line)) == ["0.1 → 0"] * 2
    assert (
        rates(modulax.ScaleByAdam(), modulax.ScaleByLearningRate(0.1, flip_sign=False), modulax.Scale(-1.0))
        == ["0.1"] * 2
    )
    assert rates(modulax.SGD(0.1), modulax.Scale(-1.0)) == ["-0.1"] * 2
    assert rates(modulax.ScaleByAdam(), modulax.Scale(-0.1)) == [""] * 2
    assert rates(modulax.Rprop(0.1), modulax.Scale(-1.0)) == ["-0.1"] * 2

    def scaled(rate: Any) -> modulax.Chain:
        return modulax.Chain(modulax.SGD(rate), modulax.ScaleByPath({"w": 10.0, "*": 0.5}))

    class Own(modulax.AbstractOptimizer):
        rate: Any = modulax.number(0.1)

        def transform(self):
            return scaled(self.rate)

    injected = modulax.inject_hyperparams(scaled)(rate=0.1)
    for optimizer in (scaled(0.1), injected, modulax.FromFactory(scaled, rate=0.1), Own()):
        for state in (None, optimizer.init(params)):
            shown = modulax.describe(optimizer, params, state)
            assert [row.learning_rate for row in shown.leaves] == ["0.05", "1.0"]


def test_multipliers_by_path_and_depth_are_in_the_learning_rate():
    tree = {"blocks": {"w": jnp.ones((3, 2))}, "head": jnp.ones(2)}
    scaled = modulax.ScaleByPath({"head": 10.0, "*": schedules.Linear(1.0, 0.5, 4)})
    assert column(modulax.Chain(modulax.SGD(0.1), scaled), "learning_rate", tree) == {
        "blocks.w": "0.1 → 0.05",
        "head": "1.0",
    }
    deep = modulax.Chain(modulax.SGD(0.1), modulax.ScaleByDepth(0.5, by_path({"blocks.*": (2, 1, 0), "head": 0})))
    assert column(deep, "learning_rate", tree) == {"blocks.w": "0.025 … 0.1", "head": "0.1"}
    half = modulax.Chain(deep, modulax.Scale(0.5))
    assert column(half, "learning_rate", tree) == {"blocks.w": "0.0125 … 0.05", "head": "0.05"}
    line = deep.replace(factor=schedules.Linear(1.0, 0.5, 4))
    assert column(line, "learning_rate", tree)["blocks.w"] == "0.1 → 0.025 … 0.1"
    before = modulax.Chain(scaled, modulax.SGD(0.1))
    assert set(column(before, "learning_rate", tree).values()) == {"0.1"}


def test_a_state_shows_the_values_of_the_next_step_and_without_it_a_note_gives_the_range():
    optimizer = modulax.Chain(
        modulax.AdamW(schedules.Linear(0.0, 1.0, 4)),
        modulax.ReduceOnPlateau(0.5, patience=1),
        modulax.Masked(modulax.ScaleByPath({"*": schedules.Linear(1.0, 0.0, 4)}), by_path({"w": True, "*": False})),
    )
    tree = {"w": jnp.ones(2), "b": jnp.ones(2)}
    state = optimizer.init(tree)
    for _ in range(2):
        _, state = optimizer.update(tree, state, tree, value=1.0)
    shown = modulax.describe(optimizer, tree, state)
    assert {row.path: row.learning_rate for row in shown.leaves} == {"b": "0.25", "w": "0.125"}
    assert shown.notes == ()
    assert shown.total_bytes == modulax.describe(optimizer, tree).total_bytes
    assert modulax.describe(optimizer, tree).notes == (
        "`learning_rate` follows `Linear`: 0 → 1.",
        "`*` follows `Linear`: 1 → 0.",
    )

    def note(schedule: Any) -> str:
        (text,) = modulax.describe(modulax.SGD(schedule), tree).notes
        return text.removeprefix("`learning_rate` follows ")

    assert note(schedules.WarmupCosineDecay(0.0, 1e-3, 100, 1000, 1e-5)) == "`WarmupCosineDecay`: 0 → 0.001 → 1e-05."
    assert note(0.5 * schedules.Constant(0.5)) == "`0.5 * Constant`: 0.25."


def test_labels_may_be_anything_and_a_rate_may_be_zero():
    zero = modulax.Partition({0: modulax.SGD(0.0), 1: modulax.SGD(0.25)}, by_path({"w": 0, "*": 1}))
    assert column(zero, "group") == {"bias": "1", "scalar": "1", "w": "0"}
    assert column(zero, "learning_rate") == {"bias": "0.25", "scalar": "0.25", "w": "0.0"}
    decayed = modulax.Chain(modulax.AddDecayedWeights(0.5), modulax.ScaleByLearningRate(0.0))
    assert set(column(decayed, "learning_rate").values()) == {"0.0"}
    assert set(column(decayed, "weight_decay").values()) == {"0.5"}


def test_a_table_of_nothing_and_of_what_is_not_trained():
    assert str(modulax.describe(modulax.Adam(0.1), {})) == "0 parameters, 8 bytes of state (8 of them shared)"
    counted = {"w": jax.ShapeDtypeStruct((1000, 2), jnp.float16), "n": jax.ShapeDtypeStruct((5,), jnp.int32)}
    description = modulax.describe(modulax.SGD(0.1), counted)
    assert [row.path for row in description.leaves] == ["w"]
    assert str(description).endswith("\n2,000 parameters, 4 bytes of state (4 of them shared)")


@pytest.mark.parametrize(
    "tree", [jnp.ones(3), {"count": jnp.ones(3)}, {"count": jnp.ones(3), "w": {"mu": jnp.ones(2)}}], ids=str
)
def test_arrays_of_optax_belong_to_the_parameters_that_ours_belong_to(tree):
    """A counter belongs to none, whatever a parameter is called, and if there is but one without a name."""
    theirs = modulax.describe(modulax.from_optax(optax.scale_by_adam()), tree)
    assert str(theirs) == str(modulax.describe(modulax.ScaleByAdam(), tree))
    assert theirs.shared_bytes == 4


def test_a_schedule_of_unknown_values_has_its_name_in_a_product():
    params = {"w": jnp.ones(2)}
    total = schedules.Linear(1.0, 0.0, 10) + 1

    def shown(rate: Any) -> str:
        optimizer = modulax.Chain(modulax.ScaleByLearningRate(rate, flip_sign=False), modulax.Scale(2.0))
        return modulax.describe(optimizer, params).leaves[0].learning_rate

    assert shown(total) == "-4 → -2"
    stateful = STATEFUL[0].make()
    assert shown(stateful + 1.0) == f"(-({type(stateful).__name__} + 1.0)) × 2.0"
    product = modulax.Chain(modulax.SGD(total), modulax.ScaleBySchedule(total))
    assert modulax.describe(product, params).leaves[0].learning_rate == "(2 → 1) × (2 → 1)"


def test_the_note_of_a_schedule_names_its_group():
    rate = schedules.WarmupCosineDecay(0.0, 1e-2, 10, 100)
    optimizer = modulax.groups(modulax.AdamW(rate), {"w": {"learning_rate": 0.1 * rate}})
    description = modulax.describe(optimizer, params())
    assert column(optimizer, "learning_rate") == {
        "bias": "0 → 0.01 → 0",
        "scalar": "0 → 0.01 → 0",
        "w": "0 → 0.001 → 0",
    }
    notes = [note for note in description.notes if "follows" in note]
    assert notes == [
        "`learning_rate` of `w` follows `0.1 * WarmupCosineDecay`: 0 → 0.001 → 0.",
        "`learning_rate` of `default` follows `WarmupCosineDecay`: 0 → 0.01 → 0.",
    ]


def test_a_notebook_shows_it_as_a_table():
    description = modulax.describe(modulax.AdamW(1e-3), {"<w>": jnp.ones((2, 3))})
    shown = description._repr_html_()
    assert (shown.count("<tr>"), shown.count("<td"), shown.count("<th")) == (2, 5, 5 + 1)  # and <thead>
    assert '<td style="text-align: left">&lt;w&gt;</td>' in shown
    assert '<td style="text-align: right">48</td>' in shown
    assert shown.endswith("shared)</p>")
    assert "role" not in shown  # a column without a text
    roles = modulax.roles({"dense": {"kernel": jnp.ones((2, 3))}})._repr_html_()
    assert '<td style="text-align: left">dense.kernel</td>' in roles
    assert modulax.Findings(("a < b.",))._repr_html_() == "<p>a &lt; b.</p>"
    assert modulax.Findings()._repr_html_() == "<p>nothing found</p>"

"""`Results.plot`: which panels there are, their axes, scales, labels and data. No training: the metrics are made up."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import modulax as mx
from modulax import sweeps

RATES = [1e-4, 1e-3, 1e-2, 1e-1]
INF = float("inf")
SEVERAL = sweeps.concat([sweeps.grid(make(1e-3), learning_rate=RATES) for make in (mx.AdamW, mx.Lion)])


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def results_of(sweep: Any, metrics: Any, segments: int = 1, trained: Any = None) -> sweeps.Results:
    sweep = sweep if isinstance(sweep, sweeps.Sweep) else sweeps.Sweep(sweep)
    metrics = jax.tree.map(np.asarray, metrics)
    first = jax.tree.leaves(metrics)[0]
    return sweeps.Results(
        sweep=sweep,
        metrics=metrics,
        diverged=~np.isfinite(first.reshape(*first.shape[:2], -1)).all(2),
        segments=np.full(len(sweep), segments) if trained is None else np.array(trained),
        keys=jax.random.split(jax.random.key(0), first.shape[1]),
        chunk=(len(sweep),),
        total=segments,
    )


def labels(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def axes_named(figure: Any, name: str) -> Any:
    return next(ax for ax in figure.axes if ax.get_xlabel() == name)


def points(ax: Any, marker: str) -> np.ndarray:
    return np.concatenate([line.get_xydata() for line in ax.lines if line.get_marker() == marker])


def test_a_grid_of_one_hyperparameter_is_a_line_over_the_range_of_the_seeds():
    losses = np.array([[1.0, 2.0], [0.1, 0.3], [0.01, 0.02], [np.nan, 0.5]], np.float32)
    figure = results_of(sweeps.grid(mx.AdamW(1e-3), learning_rate=RATES), {"loss": losses}).plot("loss")
    (ax,) = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("learning_rate", "loss")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    line = next(line for line in ax.lines if len(line.get_xdata()) == 4)
    np.testing.assert_allclose(line.get_xydata(), [(1e-4, 1.5), (1e-3, 0.2), (1e-2, 0.015), (0.1, np.nan)], rtol=1e-6)
    corners = ax.collections[0].get_paths()[0].vertices
    for corner in [(1e-4, 1.0), (1e-4, 2.0), (0.01, 0.01), (0.01, 0.02), (0.1, 0.5)]:
        assert np.isclose(corners, corner).all(axis=1).any(), corner
    # The run that diverged is marked at the upper edge, and the best member in its place.
    (mark,) = points(ax, "x")
    assert mark[0] == pytest.approx(0.1)
    assert mark[1] > 0.9
    best = next(line for line in ax.lines if line.get_color() == "#c0392b")
    np.testing.assert_allclose(best.get_xydata(), [(0.01, 0.015)], rtol=1e-6)
    assert labels(figure) == ["mean and range of 2 seeds", "diverged", "best: learning_rate = 0.01"]


def test_curves_end_where_a_run_diverges_and_are_colored_by_the_value():
    curves = np.ones((4, 1, 20)) * np.array([4, 3, 2, 1])[:, None, None]
    curves[3, 0, 5:] = np.inf
    results = results_of(sweeps.grid(mx.AdamW(1e-3), learning_rate=RATES), {"loss": curves})
    figure = results.plot("loss")
    ax, color_bar = axes_named(figure, "step"), next(a for a in figure.axes if a.get_ylabel() == "learning_rate")
    assert color_bar.get_yscale() == "log"
    assert color_bar.get_ylim() == pytest.approx((1e-4, 1e-1))
    assert len(figure.axes) == 3  # also the final values
    lines = [line for line in ax.lines if len(line.get_xdata()) == 20]
    assert len(lines) == 4
    assert np.isfinite(lines[3].get_ydata()).sum() == 5
    np.testing.assert_array_equal(points(ax, "x"), [(5, 1)])
    assert len({tuple(line.get_color()) for line in lines}) == 4
    assert axes_named(figure, "learning_rate").get_ylabel() == "final loss"
    (only,) = results.plot("loss", kind="final").axes
    assert only.get_xlabel() == "learning_rate"


def test_two_hyperparameters_on_a_grid_have_a_heat_map():
    sweep = sweeps.grid(mx.AdamW(1e-3), learning_rate=[0.1, 1e-3, 1e-2], weight_decay=[0.0, 0.1])
    losses = np.array([3.0, 4.0, 1.0, 2.0, np.nan, 6.0])[:, None]
    figure = results_of(sweep, {"loss": losses}).plot("loss")
    ax = next(a for a in figure.axes if a.get_ylabel() == "weight_decay")
    assert ax.get_xlabel() == "learning_rate"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0", "0.1"]
    values = ax.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(values, np.nan), [[1, np.nan, 3], [2, 6, 4]])
    assert sorted(t.get_text() for t in ax.texts) == ["1", "2", "3", "4", "6"]
    np.testing.assert_array_equal(points(ax, "x"), [(1.5, 0.5)])
    outline = next(line for line in ax.lines if line.get_color() == "#c0392b").get_xydata()
    assert (outline.min(0).tolist(), outline.max(0).tolist()) == ([0, 0], [1, 1])
    # Against one of them: the best over the other, and all members as points.
    against = next(a for a in figure.axes if a.get_xlabel() == "weight_decay")
    line = next(line for line in against.lines if line.get_linestyle() == "-")
    np.testing.assert_array_equal(line.get_xydata(), [(0, 1), (0.1, 2)])
    assert len(against.lines[0].get_xdata()) == 6
    assert labels(figure)[0] == "all members"
    assert len(results_of(sweep, {"loss": losses}).plot(kind="heatmap").axes) == 2  # with its color bar


def test_a_short_logarithmic_axis_names_the_values():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=[0.3, 1.0, 4.0])
    (ax,) = results_of(sweep, np.ones((3, 1))).plot().axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.3", "1", "4"]
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=np.geomspace(0.2, 4.0, 9))
    (ax,) = results_of(sweep, np.ones((9, 1))).plot().axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.3", "1", "3"]
    (ax,) = results_of(sweep, np.geomspace(0.2, 4.0, 9)[:, None]).plot().axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0.2", "0.5", "1", "2", "5"]


def test_a_sample_is_points():
    key = jax.random.key(0)
    spaces: dict[str, Any] = {
        "learning_rate": sweeps.LogUniform(1e-4, 1e-1),
        "b2": sweeps.OneMinus(sweeps.LogUniform(1e-3, 1e-1)),
        "weight_decay": sweeps.Uniform(0.0, 0.1),
    }
    sweep = sweeps.sample(key, mx.AdamW(1e-3), 16, **spaces)
    losses = np.arange(1.0, 33.0).reshape(16, 2)
    figure = results_of(sweep, losses).plot(reduce="max")
    scales = {ax.get_xlabel(): ax.get_xscale() for ax in figure.axes}
    assert scales == {"learning_rate": "log", "1 − b2": "log", "weight_decay": "linear"}
    ax = axes_named(figure, "1 − b2")
    xs = [1 - row["b2"] for row in sweep.table()]
    np.testing.assert_allclose(ax.lines[0].get_xydata(), np.stack([xs, losses[:, 1]], 1))
    assert ax.lines[0].get_linestyle() == "None"
    spans = np.array([path.vertices[:, 1] for path in ax.collections[0].get_paths()])
    np.testing.assert_array_equal(spans, losses)
    chosen = results_of(sweep, losses).plot(hyperparameters=["b2"])
    assert [a.get_xlabel() for a in chosen.axes] == ["1 − b2"]


def test_several_classes_have_a_legend():
    grids = [sweeps.grid(make(1e-3), learning_rate=RATES) for make in (mx.AdamW, mx.Lion)]
    sweep = sweeps.concat([*grids, [mx.Muon(0.02, adam_learning_rate=0.02)]])
    curves = np.linspace(2, 1, 9)[:, None, None] * np.linspace(1, 0.1, 30)
    figure = results_of(sweep, {"loss": curves}).plot()
    ax = axes_named(figure, "learning_rate")
    assert labels(figure) == ["AdamW", "Lion", "Muon", "best: Muon, learning_rate = 0.02"]
    drawn = [line for line in ax.lines if line.get_color() != "#c0392b"]
    assert [len(line.get_xdata()) for line in drawn] == [4, 4, 1]
    assert len({line.get_color() for line in drawn}) == 3


NAMED: dict[str, tuple[Any, np.ndarray]] = {
    "Adam": ([mx.Adam(0.1)], np.ones((1, 1))),
    "Muon": ([mx.Muon(0.1)], np.full((1, 3), np.nan)),
    "init_value=0.1, init_value=0.2": (
        sweeps.grid(mx.AdamW(1e-3), learning_rate=[mx.schedules.CosineDecay(rate, 100) for rate in (0.1, 0.2)]),
        np.ones((2, 3, 5)),
    ),
    "Adam, Lion": ([mx.Adam(0.1), mx.Lion(0.1)], np.ones((2, 2), int)),
    "False, True": ([mx.Adam(0.1), mx.Adam(0.1, nesterov=True)], np.ones((2, 1))),
}


@pytest.mark.parametrize("names", NAMED)
def test_values_that_are_not_numbers_have_names(names: str):
    ax = results_of(*NAMED[names]).plot().axes[-1]
    assert [t.get_text() for t in ax.get_xticklabels()] == names.split(", ")


def test_when_all_diverged_the_plot_says_so():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=[1.0, 2.0])
    figure = results_of(sweep, np.full((2, 2, 4), np.nan)).plot()
    said = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert said == ["all runs diverged"] * 2
    assert "diverged" in labels(figure)


def test_large_values_are_good_with_mode_max():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=RATES)
    accuracy = np.array([[10], [90], [50], [20]])
    figure = results_of(sweep, {"accuracy": accuracy}).plot(mode="max")
    assert labels(figure) == ["best: learning_rate = 0.001"]
    losses = np.array([[0.1], [0.9], [np.nan], [0.2]])
    ax = results_of(sweep, losses).plot(mode="max").axes[0]
    assert points(ax, "x")[0, 1] < 0.1  # at the lower edge
    # An accuracy of 0.05 to 0.97 is on a linear axis: a logarithmic one would have no room for the good ones.
    both = sweeps.grid(mx.AdamW(1e-3), learning_rate=[1e-3, 1e-2], weight_decay=[0.0, 0.1])
    curves = np.array([0.97, 0.05, 0.92, 0.9])[:, None, None] * np.linspace(0.05, 1, 5)
    figure = results_of(both, curves).plot(mode="max")
    assert {ax.get_yscale() for ax in figure.axes} == {"linear", "log"}  # the latter of the colors of rates
    assert [ax.get_ylabel() for ax in figure.axes if ax.get_yscale() == "log"] == ["learning_rate"]


def test_optimizers_with_names_of_ones_own_have_colors_and_heat_maps_of_their_own():
    grids = {
        name: sweeps.grid(mx.Chain(mx.ClipByGlobalNorm(1.0), make(1e-3)), learning_rate=[1e-3, 1e-2], b1=[0.8, 0.9])
        for name, make in (("mine", mx.AdamW), ("yours", mx.Lion))
    }
    figure = results_of(sweeps.concat(grids), np.linspace(2, 1, 8)[:, None, None] * np.linspace(1, 0.1, 4)).plot()
    assert labels(figure)[:2] == ["mine", "yours"]
    assert "best: yours, learning_rate = 0.01, b1 = 0.9" in labels(figure)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert [title for title in titles if title] == ["mine", "yours"]


def test_losses_far_from_the_others_are_marked_and_not_drawn():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=[*RATES, 1.0, 10.0])
    figure = results_of(sweep, np.array([0.3, 0.2, 0.1, 0.2, 1e9, np.nan])[:, None]).plot()
    (ax,) = figure.axes
    assert ax.get_ylim()[1] < 1e3
    np.testing.assert_allclose(np.sort(points(ax, "x")[:, 0]), [1, 10])
    assert "diverged or far off" in labels(figure)


def test_segments_are_the_time_of_a_trainable():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=RATES)
    results = results_of(sweep, np.ones((4, 2, 6)), segments=6)
    ax = results.plot(kind="curves").axes[0]
    assert (ax.get_xlabel(), ax.get_xlim()) == ("segment", (0.5, 6.5))
    assert results.plot(kind="curves", every=100).axes[0].get_xlabel() == "step"
    assert results.plot(kind="curves", every=100).axes[0].lines[0].get_xdata()[-1] == 600
    assert len(ax.collections) >= 4  # few members: the range of the seeds of each


def test_members_that_were_stopped_are_not_the_best_and_not_diverged():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=RATES)
    losses = np.array([[1.0, np.nan, np.nan], [0.1, 0.2, np.nan], [0.5, 0.4, 0.3], [0.6, 0.5, 0.4]])
    figure = results_of(sweep, losses[:, None], 3, trained=[1, 2, 3, 3]).plot()
    ax = axes_named(figure, "learning_rate")
    drawn = {tuple(point) for line in ax.lines[:2] for point in line.get_xydata()}
    assert drawn == {(1e-4, 1.0), (1e-3, 0.2), (1e-2, 0.3), (1e-1, 0.4)}
    assert labels(figure) == ["stopped early", "best: learning_rate = 0.01"]


def test_the_style_of_the_caller_is_left_alone():
    before = dict(mpl.rcParams)
    figure = results_of([mx.Adam(0.1)], np.ones((1, 1))).plot()
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == [figure.number]


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"metric": "los"}, "`los`.*`loss`"),
        ({"kind": "curve"}, "kind.*'curves'"),
        ({"kind": "curves"}, "one value for each run"),
        ({"kind": "heatmap"}, "two hyperparameters on a grid"),
        ({"hyperparameters": ["learningrate"]}, "`learningrate`.*learning_rate"),
        ({"mode": "low"}, "mode"),
    ],
)
def test_what_cannot_be_plotted_is_explained(kwargs: dict[str, Any], words: str):
    results = results_of(sweeps.grid(mx.SGD(0.1), learning_rate=RATES), {"loss": np.ones((4, 1))})
    with pytest.raises(ValueError, match=f"(?s){words}"):
        results.plot(**kwargs)


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "agg"])
def test_a_notebook_shows_a_figure_once(backend: str, monkeypatch: pytest.MonkeyPatch):
    """It asks a value for its display, and at the end of the cell the figures that are open."""
    shown = list[Any]()

    def display(figure: Any) -> None:
        if method := getattr(figure, "_ipython_display_", None):
            method()
        else:
            shown.append(figure)

    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr(plt, "get_backend", lambda: backend)
    for is_last_line in (True, False):
        shown.clear()
        figure = results_of([mx.Adam(0.1)], np.ones((1, 1))).plot()
        if is_last_line:
            display(figure)
        if "inline" in backend:
            for number in plt.get_fignums():
                display(plt.figure(number))
        else:
            assert plt.fignum_exists(figure.number)  # a window stays
        assert shown == [figure] * ("inline" in backend or is_last_line)
        shown.clear()
        display(figure)  # in a later cell, like any other
        assert shown == [figure]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    results = results_of([mx.Adam(0.1)], np.ones((1, 1)))
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "modulax\[sweeps\]"'):
        results.plot()


def test_a_metric_against_one_hyperparameter_has_a_line_for_each_value_of_another():
    sweep = sweeps.over(lambda width: None, width=[128, 64, 256]).members(
        sweeps.grid(mx.AdamW(1e-3), learning_rate=RATES, b2=[0.9, 0.99])
    )
    losses = np.repeat(np.array([[4, 1, 2, 3], [4, 3, 1.5, 9], [3, 0.5, 2, INF]]).ravel(), 2)[:, None] * [1.0, 1.2]
    losses[::2] *= 2.0  # the smaller `b2`
    results = results_of(sweep, {"loss": losses})
    (ax,) = (figure := results.plot("loss", x="learning_rate", by="width")).axes
    assert (ax.get_xlabel(), ax.get_xscale(), ax.get_ylabel()) == ("learning_rate", "log", "loss")
    assert [name for name in labels(figure) if "width" in name and "best" not in name] == [
        f"width = {x}" for x in (64, 128, 256)
    ]
    lines = [line for line in ax.lines if line.get_linestyle() == "-" and len(line.get_xdata()) >= 3]
    # Through the better `b2`, and the mean of the seeds; the line of 256 ends where it diverges.
    np.testing.assert_allclose(
        [line.get_ydata()[:3] for line in lines],
        1.1 * losses[[1, 3, 5, 9, 11, 13, 17, 19, 21], 0].reshape(3, 3)[[1, 0, 2]],
    )
    marks = [line.get_xydata()[0].tolist() for line in ax.lines if line.get_markersize() == 7]
    assert marks == [[1e-2, pytest.approx(1.65)], [1e-3, pytest.approx(1.1)], [1e-3, pytest.approx(0.55)]]
    assert points(ax, "x")[:, 0].max() == 1e-1
    assert any(
        name.replace("\n", " ") == "best: learning_rate = 0.001, b2 = 0.99, width = 256" for name in labels(figure)
    )
    assert ax.get_title(loc="left") == "best at each value: mean and range of 2 seeds"
    figure = results_of(SEVERAL, {"loss": np.arange(1.0, 1 + len(SEVERAL))[:, None]}).plot("loss", x="learning_rate")
    assert [name for name in labels(figure) if "best" not in name] == ["AdamW", "Lion"]
    wrong: list[tuple[Any, str]] = [
        ({"by": "width"}, "it needs `x`"),
        ({"x": "width", "by": "width"}, "may have another `by`"),
        ({"x": "width", "kind": "final"}, "has no `kind`"),
        ({"x": "width", "by": "depth"}, r"`plot\(by=...\)`: `depth` doesn't vary in this sweep. There are `optimizer`"),
    ]
    for options, says in wrong:
        with pytest.raises(ValueError, match=says):
            results.plot("loss", **options)

"""Line searches: the equations of scipy and optax, where nothing is found, and what the state remembers."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
import scipy.optimize
from jax.tree_util import Partial

import modulax as mx
from modulax._transforms.line import bounded_loop
from modulax.testing._case import counting_traces

from . import settings
from .refusals import refused

START = np.array([-1.2, 1.0, -1.2, 1.0])
ZOOM = mx.ScaleByZoomLinesearch(20)
BACKTRACKING = mx.ScaleByBacktrackingLinesearch(30, store_grad=True)
SEARCHES = pytest.mark.parametrize("search", [ZOOM, BACKTRACKING], ids=["zoom", "backtracking"])


def rosenbrock(x: Any) -> Any:
    """The Rosenbrock function, for JAX and NumPy arrays."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def slope_of_rosenbrock(x: np.ndarray) -> np.ndarray:
    rest = x[1:] - x[:-1] ** 2
    return np.append(-400 * x[:-1] * rest - 2 * (1 - x[:-1]), 0) + np.append(0, 200 * rest)


@functools.cache
def _data() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits  # takes seconds

    images, labels = map(np.asarray, load_digits(return_X_y=True))
    return images[:200, [20, 28, 36]] / 16, np.where(labels[:200] < 5, 1.0, -1.0)


def logistic(w: Any) -> Any:
    """Two digits apart by three features, regularized: smooth, strictly convex."""
    features, signs = _data()
    margins = jnp.asarray(signs) * (jnp.asarray(features) @ w[:-1] + w[-1])
    return jnp.mean(jnp.logaddexp(jnp.zeros_like(margins), -margins)) + 0.01 * jnp.sum(w**2)


def given(loss: Any, params: Any) -> dict[str, Any]:
    value, grad = jax.value_and_grad(loss)(params)
    return {"value": value, "grad": grad, "value_fn": loss}


def one_search(search: Any, loss: Any, params: Any, updates: Any) -> tuple[Any, Any]:
    """The updates and the state after one search."""
    return search.update(updates, search.init(params), params, **given(loss, params))


# --- The equations ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_zoom_search_takes_the_step_of_scipy():
    """Which is Nocedal and Wright's algorithms 3.5 and 3.6, with the same rules of interpolation."""
    search = mx.ScaleByZoomLinesearch(30, curv_rtol=0.3, approx_dec_rtol=None, initial_guess_strategy="one")
    random = np.random.default_rng(0)
    points = START + random.normal(size=(40, 4))
    slopes = np.stack([slope_of_rosenbrock(x) for x in points])
    directions = -slopes * np.geomspace(1e-5, 1.0, 40)[:, None] / np.linalg.norm(slopes, axis=1, keepdims=True)
    directions += 0.3 * np.linalg.norm(directions, axis=1, keepdims=True) * random.normal(size=(40, 4))
    directions = np.where((directions * slopes).sum(1, keepdims=True) < 0, directions, -directions)
    run = jax.jit(jax.vmap(lambda x, u: one_search(search, rosenbrock, x, u)[1]))
    states = run(jnp.asarray(points), jnp.asarray(directions))
    for x, u, step in zip(points, directions, np.asarray(states.learning_rate), strict=True):
        theirs = scipy.optimize.line_search(rosenbrock, slope_of_rosenbrock, x, u, c1=1e-4, c2=0.3, maxiter=30)[0]
        assert theirs is not None
        np.testing.assert_allclose(step, theirs, rtol=1e-9)  # where it interpolates between what is almost equal
    assert len(set(np.asarray(states.info.num_linesearch_steps).tolist())) > 3
    np.testing.assert_array_equal(states.info.decrease_error, 0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", [rosenbrock, logistic], ids=["rosenbrock", "logistic"])
@pytest.mark.parametrize(
    "ours, theirs",
    [
        (mx.ScaleByZoomLinesearch, optax.scale_by_zoom_linesearch),
        (
            lambda n: mx.ScaleByZoomLinesearch(n, None, 1e-8, 3.0, 0.01, 0.2, None, 1e-3, "one"),
            lambda n: optax.scale_by_zoom_linesearch(n, None, 1e-8, 3.0, 0.01, 0.2, None, 1e-3, "one"),
        ),
        (
            lambda n: mx.ScaleByBacktrackingLinesearch(n, store_grad=True),
            lambda n: optax.scale_by_backtracking_linesearch(n, store_grad=True),
        ),
        (
            lambda n: mx.ScaleByBacktrackingLinesearch(n, 0.3, 0.7, 1.4, 0.5, 1e-6, 1e-5, True),
            lambda n: optax.scale_by_backtracking_linesearch(n, 0.3, 0.7, 1.4, 0.5, 1e-6, 1e-5, True),
        ),
    ],
    ids=["zoom", "zoom-numbers", "backtracking", "backtracking-numbers"],
)
def test_each_of_sixty_steps_equals_that_of_optax(loss: Any, ours: Any, theirs: Any):
    """From the points that optax visits: the valley's trajectories part by their rounding errors, like any there."""
    ours, theirs = ours(30), theirs(30)

    def body(carry: Any, _: None) -> Any:
        x, state = carry
        extra = given(loss, x)
        own = eqx.tree_at(lambda s: s.learning_rate, ours.init(x), state.learning_rate)
        u, own = ours.update(-extra["grad"], own, x, **extra)
        v, state = theirs.update(-extra["grad"], state, x, **extra)
        return (x + v, state), ((u, own.value, own.grad), (v, state.value, state.grad))

    x = jnp.asarray(START)
    with settings.jax_defaults():
        found, expected = jax.jit(lambda x: jax.lax.scan(body, (x, theirs.init(x)), length=60)[1])(x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * float(jnp.max(jnp.abs(b))))


# --- Where nothing is found ------------------------------------------------------------------------------------------


@SEARCHES
def test_a_loss_that_is_not_finite_is_too_far(search: Any):
    """Beyond zero the logarithm is NaN."""

    def barrier(x: Any) -> Any:
        return jnp.sum(x - jnp.log(x))

    x = jnp.full((2,), 4.0)
    update, state = one_search(search.replace(max_learning_rate=100.0), barrier, x, jnp.full((2,), -50.0))
    assert jnp.all(x + update > 0)
    assert barrier(x + update) < barrier(x)
    np.testing.assert_allclose(state.value, barrier(x + update), rtol=1e-6)
    np.testing.assert_allclose(state.grad, jax.grad(barrier)(x + update), rtol=1e-6)
    assert state.info.decrease_error == 0


@SEARCHES
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_without_a_finite_loss_no_step_is_made(search: Any, bad: float):
    """The loss and the gradient stay those of the parameters; the next search does not begin with a step of zero."""

    def alone(x: Any) -> Any:
        return jnp.where(jnp.all(x == 1), jnp.sum(x**2), bad)

    x = jnp.ones(2)
    extra = {"value": jnp.asarray(2.0), "grad": 2 * x}
    updates, state = search.update(-2 * x, search.init(x), x, value_fn=alone, **extra)
    np.testing.assert_array_equal(updates, 0)
    assert (state.learning_rate, state.value) == (0, 2)
    np.testing.assert_array_equal(state.grad, extra["grad"])
    assert state.info.decrease_error == jnp.inf
    updates, state = search.update(-2 * x, state, x, value_fn=_squares, **extra)
    assert state.value < 2
    updates, state = search.update(jnp.full(2, jnp.nan), state, x, value_fn=_squares, **extra)
    np.testing.assert_array_equal(updates, 0)


def _squares(x: Any) -> Any:
    return jnp.sum(x**2)


def test_a_step_of_zero_is_no_end_for_the_next_search():
    """optax begins with the step of the last time, and stays at zero."""
    x = jnp.ones(2)
    extra = given(_squares, x)
    theirs: Any
    for ours, theirs in (
        (ZOOM, optax.scale_by_zoom_linesearch(20)),
        (BACKTRACKING, optax.scale_by_backtracking_linesearch(20, store_grad=True)),
    ):
        state = eqx.tree_at(lambda s: s.learning_rate, ours.init(x), jnp.zeros(()))
        updates, _ = ours.update(-x, state, x, **extra)
        np.testing.assert_allclose(_squares(x + updates), 0, atol=1e-6)
        with settings.jax_defaults():
            stuck = theirs.init(x)._replace(learning_rate=jnp.zeros(()))
            updates, _ = theirs.update(-x, stuck, x, **extra)
        np.testing.assert_array_equal(updates, 0)


def test_of_bad_steps_the_least_bad_is_taken():
    """There is none here that is lower than the start. optax takes the last that was tried."""
    x = jnp.zeros(())
    search = mx.ScaleByZoomLinesearch(3, initial_guess_strategy="one")

    def hill(eta: Any) -> Any:
        return jnp.where(eta < 0.9, eta, 0.05)

    updates, state = one_search(search, hill, x, jnp.ones(()))
    np.testing.assert_allclose((updates, state.value), (1.0, 0.05), rtol=1e-6)
    assert state.info.decrease_error > 0
    with settings.jax_defaults():
        theirs: Any = optax.scale_by_zoom_linesearch(3, initial_guess_strategy="one")
        last, _ = theirs.update(jnp.ones(()), theirs.init(x), x, **given(hill, x))
    assert hill(last) > 0.1


def test_a_relative_tolerance_is_one_for_negative_losses_too():
    """optax adds a fraction of the loss, which makes the condition harder where that is negative."""

    def flat(x: Any) -> Any:
        return 1e-3 * x - 10.0

    x = jnp.ones(())
    numbers: Any = {"max_learning_rate": 1.0, "rtol": 1e-2}
    updates, _ = one_search(mx.ScaleByBacktrackingLinesearch(5, **numbers), flat, x, jnp.ones(()))
    assert updates == 1
    with settings.jax_defaults():
        theirs: Any = optax.scale_by_backtracking_linesearch(5, **numbers)
        _, state = theirs.update(-jnp.ones(()), theirs.init(x), x, **given(flat, x))
    assert state.info.decrease_error > 0


# --- What it is given ------------------------------------------------------------------------------------------------


def fit(params: Any, x: Any, y: Any, scale: float = 1.0) -> Any:
    return scale * jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


@SEARCHES
def test_extra_arguments_reach_the_loss(search: Any):
    """The arguments in its signature do; a batch may be bound instead, and another one does not retrace."""
    random = np.random.default_rng(0)
    params = {"w": jnp.zeros(3), "b": jnp.zeros(()), "unused": None}
    batches = [{"x": jnp.asarray(random.normal(size=(5, 3))), "y": jnp.ones(5) * i} for i in range(1, 4)]
    state = search.init(params)

    compiled = jax.jit(fit)

    def step(batch: Any, bound: bool) -> Any:
        loss = Partial(fit, **batch) if bound else compiled
        value, grad = jax.value_and_grad(fit)(params, **batch)
        extra: dict[str, Any] = {"value": value, "grad": grad, "value_fn": loss, "unknown": "text"}
        updates = jtu.tree_map(jnp.negative, grad)
        return search.update(updates, state, params, **extra, **({} if bound else batch))

    bound, passed = step(batches[0], True), step(batches[0], False)
    assert eqx.tree_equal(bound, passed, rtol=1e-6)
    assert bound[0]["unused"] is None
    with counting_traces() as traces:
        others = [step(batch, bound) for batch in batches[1:] for bound in (True, False)]
    assert not [name for name in traces if "update" in name]
    assert others[0][1].value != others[2][1].value


def test_extra_arguments_of_others_are_no_mistake():
    x = jnp.ones(2)
    extra = {**given(_squares, x), "for_another": jnp.ones(())}
    for loss in (_squares, lambda x, *args, **kwargs: _squares(x)):
        own: dict[str, Any] = extra | {"value_fn": loss}
        updates, _ = ZOOM.update(-x, ZOOM.init(x), x, **own)
        np.testing.assert_array_equal(updates, -x)
    with settings.jax_defaults():
        theirs: Any = optax.scale_by_zoom_linesearch(20)
        state = theirs.init(x)
        with pytest.raises(TypeError, match="for_another"):
            theirs.update(-x, state, x, **extra)


@SEARCHES
def test_what_is_missing_is_said(search: Any):
    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    name = type(search).__name__
    extra = {"value": jnp.zeros(()), "grad": params, "value_fn": fit}
    for changes, words in (
        ({}, (f"`{name}`: `value_fn` takes `x`, `y` in ", "`update(", "x=..., y=...)`")),
        ({"value_fn": None}, (f"`{name}` needs `value_fn`",)),
        ({"value_fn": 3.0}, (f"`{name}` needs `value_fn`, the function to minimize",)),
        ({"value_fn": lambda params: params["w"][:1]}, ("must return a scalar, got an array of shape (1,)",)),
        (
            {"value_fn": lambda params: params["b"], "grad": {"b": jnp.zeros(())}},
            ("`grad`, the gradient at the parameters", "shape: `w`"),
        ),
    ):
        with refused(*words):
            search.update(params, search.init(params), params, **{**extra, **changes})
    with refused("_steps=...)` must be a positive integer, got 0"):
        type(search)(0)


# --- The state after a search ----------------------------------------------------------------------------------------


def misleading(params: Any) -> Any:
    """Not the loss that was minimized: whoever returns its value has not looked into the state."""
    return 100.0 + jnp.sum(params**2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ZOOM,
        lambda: mx.Chain(mx.Scale(0.5), BACKTRACKING),
        lambda: mx.LBFGS(),
        lambda: mx.MultiSteps(mx.Masked(mx.Chain(mx.LBFGS(linesearch=None), ZOOM), True), 1),
        lambda: mx.Injected(mx.Scheduled(BACKTRACKING)),
    ],
    ids=["bare", "chain", "optimizer", "nested", "injected"],
)
def test_the_state_is_read_through_any_nesting(make: Any):
    transform, x = make(), jnp.asarray([0.3, -0.2])
    value_and_grad = mx.value_and_grad_from_state(misleading)
    state = transform.init(x)
    value, grad = value_and_grad(x, state=state)  # nothing is stored, and so it is computed
    np.testing.assert_allclose((value, *grad), (misleading(x), *(2 * x)), rtol=1e-6)
    updates, state = transform.update(-2 * x, state, x, **given(_squares, x))
    value, grad = jax.jit(lambda x, s: value_and_grad(x, state=s))(x + updates, state)
    np.testing.assert_allclose((value, *grad), (_squares(x + updates), *(2 * (x + updates))), rtol=1e-5, atol=1e-6)


def test_a_state_without_one_search_is_refused():
    x = jnp.ones(2)
    value_and_grad = mx.value_and_grad_from_state(_squares)
    for transform, message in (
        (mx.Adam(0.1), "exactly one line search, found 0"),
        (mx.Chain(ZOOM, BACKTRACKING), "exactly one line search, found 2"),
        (mx.ScaleByBacktrackingLinesearch(5), "doesn't store the gradient.*store_grad=True"),
    ):
        with pytest.raises(ValueError, match=message):
            value_and_grad(x, state=transform.init(x))


def test_whole_models_and_further_arguments():
    model = eqx.nn.MLP(2, "scalar", 3, 1, key=jax.random.key(0))
    static = eqx.partition(model, eqx.is_inexact_array)[1]
    x = jnp.ones(2)

    def loss(params: Any, x: Any) -> Any:
        return eqx.combine(params, static)(x) ** 2

    optimizer = mx.Chain(mx.SGD(1.0), ZOOM)
    value_and_grad = mx.value_and_grad_from_state(lambda model, x, factor: factor * model(x) ** 2)
    state = optimizer.init(model)
    losses = []
    for _ in range(3):
        value, grads = value_and_grad(model, x, state=state, factor=1.0)
        model, state = optimizer.step(grads, state, model, value=value, grad=grads, value_fn=loss, x=x)
        losses.append(float(value))
    assert losses[2] < 1e-3 * losses[0]


# --- Numbers ---------------------------------------------------------------------------------------------------------


def test_complex_parameters_are_their_parts():
    """Updates and `grad` are the conjugates of what `jax.grad` returns, as for every optimizer."""
    matrix = np.asarray([[1, -2], [3, 4], [-4 + 2j, 5 - 3j], [-2 - 2j, 6]], np.complex64)

    def loss(z: Any) -> Any:
        return jnp.sum(jnp.abs(jnp.asarray(matrix) @ z) ** 1.5)

    def of_parts(x: Any) -> Any:
        return loss(jax.lax.complex(x[0], x[1]))

    z = jnp.asarray(np.asarray([1 - 1j, 1j], np.complex64))
    parts = jnp.stack([z.real, z.imag])
    search: Any
    for search in (ZOOM, BACKTRACKING):
        u, state = one_search(search, of_parts, parts, -jax.grad(of_parts)(parts))
        value, raw = jax.value_and_grad(loss)(z)
        grad = raw.conj()
        v, own = search.update(-grad, search.init(z), z, value=value, grad=grad, value_fn=loss)
        np.testing.assert_allclose(v, np.asarray(u[0]) + 1j * np.asarray(u[1]), rtol=1e-4)
        np.testing.assert_allclose(own.value, state.value, rtol=1e-5)
        np.testing.assert_allclose(own.grad, jax.grad(loss)(z + v), rtol=1e-3, atol=1e-3)  # as `jax.grad` returns it


def test_optax_wants_other_gradients_of_complex_parameters_for_its_other_search():
    """Its zoom search takes the conjugate, its backtracking search what `jax.grad` returns: else it may climb."""
    z = jnp.asarray(np.asarray([1 - 2j], np.complex64))

    def loss(z: Any) -> Any:
        return jnp.sum(z.real**2 + (z.imag - 1) ** 2)

    value, raw = jax.value_and_grad(loss)(z)
    extra = {"value": value, "grad": raw.conj(), "value_fn": loss}
    numbers: Any = {"slope_rtol": 0.3, "max_learning_rate": 1.3}
    ours = mx.ScaleByBacktrackingLinesearch(9, **numbers)
    updates, _ = ours.update(-raw.conj(), ours.init(z), z, **extra)
    assert loss(z + updates) < value
    with settings.jax_defaults():
        theirs: Any = optax.scale_by_backtracking_linesearch(9, **numbers)
        updates, _ = theirs.update(-raw.conj(), theirs.init(z), z, **extra)
        assert loss(z + updates) > value


def test_the_stored_loss_is_that_of_the_rounded_point():
    """So that the next search starts from the loss of the parameters that there are."""
    dtype = jnp.bfloat16
    x = jnp.asarray([1.37, -2.6, 0.11], dtype)
    for search in (ZOOM, BACKTRACKING):
        u, state = one_search(search, lambda x: jnp.sum(x.astype(jnp.float32) ** 4), x, -x)
        after = mx.apply_updates(x, u)
        assert (u.dtype, state.grad.dtype, state.value.dtype) == (dtype, dtype, jnp.float32)
        np.testing.assert_allclose(state.value, jnp.sum(after.astype(jnp.float32) ** 4), rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_the_loop_has_both_derivatives():
    """Also with respect to values that its functions close over."""

    def run(x: Any, y: Any) -> Any:
        return bounded_loop(lambda c: c < 20.0, lambda c: c * y, x, 10)

    x, y = jnp.asarray(1.0), jnp.asarray(3.0)
    assert run(x, y) == 27
    assert jax.grad(run, argnums=(0, 1))(x, y) == (27.0, 27.0)
    assert jax.jvp(run, (x, y), (0.0 * x, jnp.ones(()))) == (27.0, 27.0)
    assert bounded_loop(lambda c: c < 20.0, lambda c: c * y, x, 2) == 9
    np.testing.assert_allclose(jax.vmap(jax.grad(run), (0, None))(jnp.asarray([1.0, 5.0]), y), [27, 9])


def test_a_stored_gradient_is_one_of_all_parameters_on_the_device():
    params = {"a": jnp.ones(3), "z": jnp.ones(2)}
    search = mx.LBFGS(linesearch=mx.ScaleByZoomLinesearch(4))

    def loss(params: Any) -> Any:
        return sum(jnp.sum(p**2) for p in params.values())

    value_and_grad = mx.value_and_grad_from_state(loss)
    optimizer: Any = mx.Offload(search)
    state = optimizer.init(params)
    for _ in range(2):
        value, grads = value_and_grad(params, state=state)
        np.testing.assert_allclose(value, loss(params))
        params, state = optimizer.step(grads, state, params, value=value, grad=grads, value_fn=loss)
    masked = mx.selective_transform(search, freeze_mask=mx.by_path({"z": True, "*": False}))
    for other in (masked, mx.Flatten(search)):
        with pytest.raises(ValueError, match=r"some of the parameters, or another form of them.*`jax.value_and_grad`"):
            value_and_grad(params, state=other.init(params))

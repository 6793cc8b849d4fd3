"""Cross-entropies at the edges: infinite and large logits, labels that are no class, examples that are left out."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify
from scipy import special

from modulax import losses

from .refusals import refused
from .settings import jax_defaults

INF = jnp.inf
# One program each: op by op, every shape of every operation would be compiled by itself.
INTEGERS, SOFTMAX, POLY = (
    jax.jit(function, static_argnames="axis")
    for function in (
        losses.softmax_cross_entropy_with_integer_labels,
        losses.softmax_cross_entropy,
        losses.poly_loss_cross_entropy,
    )
)
BINARY, FOCAL = jax.jit(losses.sigmoid_binary_cross_entropy), jax.jit(losses.sigmoid_focal_loss)


def _all_derivatives(function, *arguments):
    """The value, the gradients, what forward mode makes of them, and the second derivatives, by all arguments."""
    numbers = tuple(range(len(arguments)))
    gradients = jax.grad(function, numbers)
    return jax.jit(
        lambda *a: (function(*a), gradients(*a), jax.jacfwd(function, numbers)(*a), jax.jacfwd(gradients, numbers)(*a))
    )(*arguments)


# --- Probabilities -------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("function", [SOFTMAX, POLY])
def test_an_impossible_class_without_a_label_is_not_there(function):
    logits, labels = jnp.array([0.5, -INF, 1.5]), jnp.array([0.3, 0.0, 0.7])
    value, by_each, forward, second = _all_derivatives(function, logits, labels)
    there = jnp.array([0, 2])
    expected = _all_derivatives(function, logits[there], labels[there])
    chex.assert_tree_all_finite((value, by_each, forward, second))
    chex.assert_trees_all_close(value, expected[0], rtol=1e-14)
    chex.assert_trees_all_close([g[there] for g in by_each], list(expected[1]), rtol=1e-14)
    chex.assert_trees_all_close(forward, by_each, rtol=1e-14)
    chex.assert_trees_all_close(jax.tree.map(lambda h: h[there][:, there], second), expected[3], rtol=1e-13, atol=1e-15)
    assert all(g[1] == 0 for g in by_each)
    theirs = getattr(optax.losses, function.__name__)
    with jax_defaults():
        assert np.isnan(theirs(logits, labels))
        tangents = jnp.ones(3), jnp.zeros(3)
        assert np.isnan(jax.jvp(optax.safe_softmax_cross_entropy, (logits, labels), tangents)[1])


def test_an_impossible_class_with_a_label_loses_infinitely_much():
    value, gradient = jax.value_and_grad(SOFTMAX)(jnp.array([0.0, -INF]), jnp.array([0.5, 0.5]))
    assert value == INF
    np.testing.assert_array_equal(gradient, [0.5, -0.5])


@pytest.mark.parametrize("function", [SOFTMAX, POLY])
def test_large_logits_have_finite_losses(function):
    logits = jnp.array([[1e38, -2e38, 0.0], [-3e38, 3e38, -INF], [1e4, 1e4, -1e4]])
    labels = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    value, gradients = jax.jit(jax.vmap(jax.value_and_grad(function, (0, 1))))(logits, labels)
    expected = np.log(2) + (function is POLY)
    np.testing.assert_allclose(value, [0, 0, expected], rtol=1e-6)
    chex.assert_tree_all_finite(gradients)


def test_labels_of_classes_that_are_left_out_have_derivatives_of_zero():
    """Even if they are NaN; optax has derivatives of NaN by every label that is left out."""
    logits, labels, where = jnp.array([0.0, -1.0]), jnp.array([1.0, jnp.nan]), jnp.array([True, False])
    by_labels = jax.jit(jax.grad(lambda y: losses.softmax_cross_entropy(logits, y, where=where)))
    np.testing.assert_array_equal(by_labels(labels), [0, 0])
    with jax_defaults():
        masked = jax.grad(lambda y: optax.softmax_cross_entropy(logits, y, where=where))
        assert np.isnan(masked(jnp.ones(2))[1])


def test_labels_may_be_booleans_and_broadcast():
    logits, one_hot = jnp.array([[0.5, -1.0, 2.0]]), jnp.array([[False, False, True]])
    expected = SOFTMAX(logits, one_hot.astype(jnp.float32))
    np.testing.assert_array_equal(SOFTMAX(logits, one_hot), expected)
    np.testing.assert_array_equal(SOFTMAX(logits, one_hot[0].astype(int)), expected)
    # Probabilities of the shape of the examples are no class indices.
    square, shared = jnp.arange(9.0).reshape(3, 3) ** 0.5, jnp.array([0.5, 0.25, 0.25])
    np.testing.assert_array_equal(SOFTMAX(square, shared), SOFTMAX(square, jnp.tile(shared, (3, 1))))


def test_all_axes_are_one():
    logits = jnp.arange(6.0).reshape(2, 3)
    labels = jnp.full((2, 3), 1 / 6)
    together = SOFTMAX(logits.ravel(), labels.ravel())
    np.testing.assert_allclose(SOFTMAX(logits, labels, axis=None), together, rtol=1e-6)
    by_integer = INTEGERS(logits, jnp.array(4), axis=None)
    np.testing.assert_allclose(by_integer, INTEGERS(logits.ravel(), jnp.array(4)), rtol=1e-6)
    assert INTEGERS(jnp.zeros((0, 2, 3)), jnp.zeros(0, int), axis=(1, 2)).shape == (0,)


# --- Integers ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_integers_are_one_hot_labels():
    """Also to second derivatives, along any axis, and when something is left out."""
    logits, labels = jax.random.normal(jax.random.key(0), (3, 4)), jnp.array([1, 0, 3])
    where = jnp.array([[True, True, False, True], [True, True, True, False], [False, False, True, True]])
    weights = jnp.array([1.0, -2.0, 3.0])
    one_hot = jax.nn.one_hot(labels, 4)
    ours = _all_derivatives(lambda x: INTEGERS(x.T, labels, 0, where.T) @ weights, logits)
    same = _all_derivatives(lambda x: SOFTMAX(x, one_hot, -1, where) @ weights, logits)
    chex.assert_trees_all_close(ours, same, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(ours[1][0].sum(-1), 0, atol=1e-15)  # a constant added to all logits changes nothing


def test_a_small_loss_of_large_logits_is_not_rounded_away():
    logits, label = jnp.array([1e4, 1e4 - 7.0]), jnp.array(0)
    np.testing.assert_allclose(INTEGERS(logits, label), np.log1p(np.exp(-7.0)), rtol=1e-4)
    with jax_defaults():
        theirs = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    assert not np.isclose(theirs, np.log1p(np.exp(-7.0)), rtol=0.05, atol=0)


@pytest.mark.parametrize("loss", [INTEGERS, losses.multiclass_perceptron_loss, losses.multiclass_sparsemax_loss])
def test_labels_of_one_byte_may_be_fewer_than_the_classes(loss):
    scores, labels = jax.random.normal(jax.random.key(0), (3, 300)), np.array([127, 5, 200])
    expected = jax.jit(loss)(scores, labels)
    for dtype, rows in ((np.int8, slice(2)), (np.uint8, slice(3))):
        np.testing.assert_array_equal(jax.jit(loss)(scores[rows], labels[rows].astype(dtype)), expected[rows])
    chex.assert_tree_all_finite(expected)


def _summed(logits, labels, where=None):
    return jnp.sum(INTEGERS(logits, labels, where=where))


@pytest.mark.parametrize(
    "transform",
    [lambda f: f, jax.jit, jax.grad, lambda f: jax.vmap(f, (0, 0)), lambda f: jax.jit(jax.grad(jax.checkpoint(f)))],
    ids=["eager", "jit", "grad", "vmap", "checkpoint"],
)
def test_labels_are_checked_under_checkify(transform):
    check = checkify.checkify(transform(_summed))
    logits, labels = jnp.zeros((4, 3)), jnp.array([0, 2, -1, 1])
    message = (
        "`softmax_cross_entropy_with_integer_labels` needs `labels` from 0 to 2, one of the 3 classes in `logits`."
    )
    assert message in str(check(logits, labels)[0].get())
    assert check(logits, labels % 3)[0].get() is None


def test_errors_of_others_are_kept():
    def two(x, labels):
        checkify.check(x > 0, "x is not positive")
        return x * _summed(jnp.zeros((2, 3)), labels)

    check = jax.jit(checkify.checkify(two))
    good, bad = jnp.array([0, 1]), jnp.array([0, 9])
    assert "x is not positive" in str(check(-1.0, bad)[0].get())
    assert "x is not positive" in str(check(-1.0, good)[0].get())
    assert "needs `labels`" in str(check(1.0, bad)[0].get())
    assert check(1.0, good)[0].get() is None


def test_labels_of_examples_that_are_left_out_are_not_looked_at():
    logits, labels = jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [3.0, 1.0]]), jnp.array([1, -1, 0])
    error, value = checkify.checkify(jax.grad(_summed))(logits, labels, labels >= 0)
    assert error.get() is None
    np.testing.assert_array_equal(value[1], 0)
    chex.assert_tree_all_finite(value)
    np.testing.assert_allclose(
        INTEGERS(logits, labels, where=labels >= 0), [np.log1p(np.exp(-1)), 0, np.log1p(np.exp(-2))], rtol=1e-6
    )


def test_a_label_of_a_class_that_is_left_out_is_impossible():
    logits, labels = jnp.array([[1.0, 7.0, 2.0]]), jnp.array([1])
    where = jnp.array([[True, False, True]])
    value, gradient = jax.value_and_grad(_summed)(logits, labels, where)
    assert value == INF
    np.testing.assert_allclose(gradient[0], [special.expit(-1), 0, special.expit(1)], rtol=1e-6)
    with jax_defaults():
        assert optax.softmax_cross_entropy_with_integer_labels(logits, labels, where=where) < 0


def test_a_check_is_no_effect():
    """JAX calls a program that has an effect, even one that does nothing, by a path that is many times slower."""
    program = jax.make_jaxpr(INTEGERS)(jnp.zeros((4, 3)), jnp.zeros(4, int))
    assert "modulax_checked" in str(program)
    assert not program.effects


def test_the_gradient_keeps_nothing_but_the_logits():
    logits = jax.random.normal(jax.random.key(0), (16, 512), jnp.bfloat16)
    labels = jnp.arange(16)
    _, back = jax.vjp(lambda x: INTEGERS(x, labels), logits)
    kept = [x for x in jax.tree.leaves(back) if isinstance(x, jax.Array)]
    assert sum(x.nbytes for x in kept) < 1.1 * logits.nbytes
    program = jax.make_jaxpr(jax.grad(_summed))(logits.astype(jnp.float32), labels)
    assert "scatter" not in str(program)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("by", [INTEGERS, jax.grad(_summed)])
def test_nothing_of_the_size_of_the_logits_is_made(dtype, by):
    """Neither the exponentials nor, of narrow logits, a copy in float32: they would be the largest arrays of a step."""
    logits, labels = jax.ShapeDtypeStruct((64, 512), dtype), jax.ShapeDtypeStruct((64,), jnp.int32)
    memory = jax.jit(by).lower(logits, labels).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 0.1 * 64 * 512


# --- Yes or no -----------------------------------------------------------------------------------


def test_an_infinite_logit_is_certain():
    logits, labels = jnp.array([INF, -INF, INF, -INF, INF]), jnp.array([1.0, 0.0, 0.0, 1.0, 0.5])
    for function in (BINARY, FOCAL):
        value, gradients = jax.vmap(jax.value_and_grad(function, (0, 1)))(logits, labels)
        np.testing.assert_array_equal(value, [0, 0, INF, INF, INF])
        chex.assert_tree_all_finite([g[:2] for g in gradients])
    np.testing.assert_array_equal(BINARY(logits[:2], jnp.array([True, False])), 0)
    with jax_defaults():
        assert np.isnan(optax.sigmoid_binary_cross_entropy(logits[:2], labels[:2])).all()


def test_binary_cross_entropy_and_its_derivatives_for_large_logits():
    logits = np.array([-3e38, -1e4, -90.0, -20.0, 0.0, 20.0, 90.0, 1e4, 3e38])
    function = BINARY
    for label in (0.0, 0.3, 1.0):
        loss = lambda x, y=label: function(x, jnp.asarray(y))  # noqa: E731
        exact = np.where(label == 1, 0, -(1 - label) * special.log_expit(-logits)) - label * special.log_expit(logits)
        x = jnp.asarray(logits, jnp.float32)
        chex.assert_trees_all_close(jax.vmap(loss)(x), exact, rtol=1e-6, atol=1e-37)
        gradient = (1 - label) * special.expit(logits) - label * special.expit(-logits)
        chex.assert_trees_all_close(jax.vmap(jax.grad(loss))(x), gradient, rtol=1e-6, atol=1e-37)
        second = special.expit(logits) * special.expit(-logits)
        chex.assert_trees_all_close(jax.vmap(jax.grad(jax.grad(loss)))(x), second, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_of_large_logits(gamma: float, alpha: float | None):
    logits = np.array([-1e30, -1e4, -100.0, -50.0, -1.0, 0.0, 3.0, 50.0, 100.0, 1e4, 1e30], np.longdouble)
    for label in (0, 1):
        sign = 2 * label - 1  # the loss is a function of t = sign * x, and log(1 - p_t) = -softplus(t)
        softplus = np.logaddexp(0, sign * logits)
        weight = 1 if alpha is None else (alpha if label else 1 - alpha)
        modulation = weight * np.exp(-gamma * softplus)
        entropy = np.logaddexp(0, -sign * logits)
        right = np.exp(-entropy)  # σ(t)
        exact = modulation * entropy
        slope = -sign * modulation * (gamma * right * entropy + np.exp(-softplus))

        def loss(x, label=label):
            return FOCAL(x, jnp.asarray(label), gamma=gamma, alpha=alpha)

        value, gradient = jax.vmap(jax.value_and_grad(loss))(jnp.asarray(logits, jnp.float32))
        chex.assert_trees_all_close(value, exact.astype(float), rtol=3e-6, atol=1e-37)
        chex.assert_trees_all_close(gradient, slope.astype(float), rtol=3e-6, atol=1e-37)
        small = np.abs(logits) <= 1e4
        half = jax.vmap(jax.value_and_grad(loss))(jnp.asarray(logits[small], jnp.float16))
        chex.assert_trees_all_close(
            half, (exact[small].astype(float), slope[small].astype(float)), rtol=1e-3, atol=1e-7
        )


def test_focal_loss_has_all_derivatives_of_labels_that_are_certain():
    logits, labels = jnp.array([-200.0, -1.0, 0.0, 2.0, 200.0]), jnp.array([0.0, 1.0])
    grid = jnp.meshgrid(logits, labels, jnp.array([0.0, 0.5, 2.0]))

    def loss(x, y, gamma):
        return FOCAL(x, y, gamma=gamma)

    by_each = jax.vmap(jax.grad(loss, (0, 1, 2)))(*map(jnp.ravel, grid))
    chex.assert_tree_all_finite(by_each)
    chex.assert_tree_all_finite(jax.vmap(jax.grad(jax.grad(loss)))(*map(jnp.ravel, grid)))
    h = 1e-3
    by_difference = (loss(2.0, 1.0, 0.5) - loss(2.0, 1 - h, 0.5)) / h
    np.testing.assert_allclose(jax.grad(loss, 1)(2.0, 1.0, 0.5), by_difference, rtol=1e-2)


def test_a_weight_of_zero_is_a_weight_like_any_other():
    logits, labels = jnp.array([-3.0, 0.0, 5.0]), jnp.array([0.2, 1.0, 0.0])
    of_zero = losses.sigmoid_focal_loss(logits, labels, gamma=0.0, alpha=0.0)
    np.testing.assert_allclose(of_zero, (1 - labels) * BINARY(logits, labels), rtol=1e-6)


# --- Smoothing -----------------------------------------------------------------------------------


def test_smoothed_labels_add_up_to_one():
    """Over the classes that are not left out; the weights are those of the examples."""
    labels = jnp.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    where = jnp.array([[True, True, False], [True, True, True]])
    smooth = losses.smooth_labels(labels, jnp.array([[0.1], [0.3]]), where=where)
    np.testing.assert_allclose(smooth, [[0.05, 0.95, 0], [0.8, 0.1, 0.1]], rtol=1e-6)
    with jax_defaults():
        assert optax.smooth_labels(labels, 0.1, where=where)[0].sum() > 1.03


# --- Sentences -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_explained():
    """`test_functions.py` tests all shapes and dtypes; here is what is said beside them."""
    x, y, integer = jnp.zeros((4, 3)), jnp.zeros(4, int), losses.softmax_cross_entropy_with_integer_labels
    with refused("integers, the class indices, got an array of dtype float32 and shape (4,). For probabilities"):
        integer(x, y.astype(jnp.float32))
    with refused("of shape (3,), the shape of `logits`, (4, 3), without its axis of classes, got (4,)."):
        integer(x, y, axis=0)
    with refused("of shape (3,), the shape of `logits`, (1, 4, 3), without its axes of classes, got (4,)."):
        integer(x[None], y, axis=(0, 1))
    with refused("`where` of the shape of `logits`, (4, 3), or of its examples, (4,), got (3,)."):
        integer(x, y, where=jnp.ones(3, bool))
    with refused("one value per class, in the shape (4, 3) of `logits`, got integers of shape (4,). For class indices"):
        losses.softmax_cross_entropy(x, y)
    with refused("`softmax_cross_entropy` needs `labels` to broadcast to the shape of `logits`, (1, 3), got (4, 3)."):
        losses.softmax_cross_entropy(x[:1], x)
    with refused("`sigmoid_binary_cross_entropy` needs `labels` to broadcast to the shape of `logits`, (4, 1)"):
        losses.sigmoid_binary_cross_entropy(x[:, :1], y)
    with refused("`poly_loss_cross_entropy` needs `loss` and `epsilon` of shapes that broadcast, got (4,) and (3,)."):
        losses.poly_loss_cross_entropy(x, x, epsilon=jnp.ones(3))

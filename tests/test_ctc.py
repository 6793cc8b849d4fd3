"""CTC against the sum over all alignments, and at the edges: confident models, impossible labels, padding."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify

from modulax import losses

from .functions.losses_ctc import said
from .refusals import refused
from .settings import jax_defaults

IMPOSSIBLE = 1e5


# Compiled once for each shape, which several tests share.
_loss = jax.jit(losses.ctc_loss, static_argnames="blank_id")
_forward_probs = jax.jit(losses.ctc_loss_with_forward_probs)
_optax_loss = jax.jit(optax.ctc_loss)


@jax.jit
def _differentiated(logits: jax.Array, direction: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The losses, the gradient of their sum, and their derivatives in a direction."""

    def loss(x: jax.Array) -> jax.Array:
        return losses.ctc_loss(x, *rest)

    value, tangent = jax.jvp(loss, (logits,), (direction,))
    return value, jax.grad(lambda x: jnp.sum(loss(x)))(logits), tangent


def _padding(lengths: Any, size: int) -> np.ndarray:
    return (np.arange(size) >= np.asarray(lengths)[:, None]).astype(np.float64)


def _all_sequences(frames: int, classes: int, labels: int, blank: int) -> tuple[Any, Any]:
    """Every sequence of labels at every number of frames, and which alignments of the frames say it."""
    kinds = [k for k in range(classes) if k != blank]
    sequences = [y for n in range(labels + 1) for y in itertools.product(kinds, repeat=n)]
    paths = list(itertools.product(range(classes), repeat=frames))
    lengths, rows, says = [], [], []
    for length in range(frames + 1):
        for y in sequences:
            lengths.append(length)
            rows.append(y)
            # Each alignment of the frames that are there once: those that are not there are of class zero.
            says.append([said(path[:length], blank) == y and not any(path[length:]) for path in paths])
    padded = np.array([list(y) + [0] * (labels - len(y)) for y in rows])
    return (_padding(lengths, frames), padded, _padding([len(y) for y in rows], labels)), np.array(says)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("blank", [0, 1])
def test_equals_the_sum_over_all_alignments(blank: int):
    """The value, the gradient, and the gradient of the gradient, for all labels at all lengths; impossible ones too."""
    frames, classes = 5, 3
    (frame_paddings, labels, label_paddings), says = _all_sequences(frames, classes, 3, blank)
    paths = np.array(list(itertools.product(range(classes), repeat=frames)))
    is_possible = says.any(1)
    assert not is_possible.all()
    logits, direction = np.random.default_rng(0).normal(size=(2, len(labels), frames, classes))
    weights = np.cos(np.arange(len(labels)))

    def ours(x: jax.Array) -> jax.Array:
        return losses.ctc_loss(x, frame_paddings, labels, label_paddings, blank_id=blank)

    def brute(x: jax.Array) -> jax.Array:
        log_p = jnp.where(frame_paddings[:, :, None] == 0, jax.nn.log_softmax(x), 0.0)
        of_paths = jnp.sum(log_p[:, np.arange(frames)[None, :], paths], -1)
        total = jax.scipy.special.logsumexp(of_paths, axis=1, where=says | ~is_possible[:, None])
        return jnp.where(is_possible, -total, IMPOSSIBLE)

    def all_of_it(function: Any) -> Any:
        def weighted(x: jax.Array) -> jax.Array:
            return jnp.sum(function(x) * weights)

        return function(logits), jax.jvp(jax.grad(weighted), (logits,), (direction,))

    value, (gradient, second) = jax.jit(lambda: all_of_it(ours))()
    expected, (expected_gradient, expected_second) = jax.jit(lambda: all_of_it(brute))()
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-13)
    np.testing.assert_allclose(second, expected_second, atol=1e-13)
    assert not np.any(gradient[~is_possible])


def test_a_confident_model_has_no_negative_loss():
    """optax issue 1771: a logarithm of the loss was NaN."""
    logits = np.random.default_rng(0).uniform(-25, -15, (32, 300, 2))
    logits[:, :, 1] = 0
    logits[0, 2:], logits[0, :2] = [-100, 0], [0, 17]
    arguments = logits, np.zeros((32, 300)), np.ones((32, 1), int), np.zeros((32, 1))
    loss, *alphas = _forward_probs(*arguments)
    assert np.all(loss >= 0)
    assert np.all(loss < 1e-3)
    assert all(np.all(alpha <= 0) for alpha in alphas)
    with jax_defaults():
        theirs = _optax_loss(*arguments)
    assert np.any(theirs < 0)
    np.testing.assert_allclose(loss, theirs, atol=1e-4)


def test_rounding_errors_do_not_pile_up_over_the_frames():
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(2, 200, 8)).astype(np.float32)
    rest = np.zeros((2, 200)), rng.integers(1, 8, size=(2, 20)), np.zeros((2, 20))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(losses.ctc_loss(x, *rest))))
    single = gradient(logits)
    with jax.enable_x64(True):
        double = gradient(logits.astype(np.float64))
    np.testing.assert_allclose(single, double, atol=1e-4)
    np.testing.assert_allclose(jnp.sum(single, -1), 0, atol=1e-6)  # as for every softmax


def test_labels_that_cannot_be_said_move_nothing():
    """More labels than frames; no room for a blank; a class that cannot occur; no frames. Beside one that can be."""
    rng = np.random.default_rng(0)
    logits, direction = rng.normal(size=(2, 5, 3, 4))
    logits[2, :, 3] = -np.inf
    labels = np.array([[1, 2, 3, 1], [2, 2, 1, 0], [3, 0, 0, 0], [1, 0, 0, 0], [1, 2, 3, 0]])
    rest = _padding([3, 3, 3, 0, 3], 3), labels, _padding([4, 3, 1, 1, 3], 4)
    value, gradient, tangent = _differentiated(logits, direction, *rest)
    expected = -jax.nn.log_softmax(logits[4])[np.arange(3), np.array([1, 2, 3])].sum()
    np.testing.assert_allclose(value, np.append([IMPOSSIBLE] * 4, expected), rtol=1e-6)
    for derivative in (gradient, tangent):
        np.testing.assert_array_equal(derivative[:4], 0)
        assert np.all(np.isfinite(derivative[4]) & (derivative[4] != 0))
    np.testing.assert_array_equal(_loss(logits, *rest, log_epsilon=-7.0)[:4], 7)
    half = _loss(logits.astype(np.float16), *rest)
    np.testing.assert_array_equal(half[:4], np.finfo(np.float16).max)
    with jax_defaults():
        assert np.any(jax.jit(jax.grad(lambda x: jnp.sum(optax.ctc_loss(x, *rest)[:2])))(logits)[:2])


def test_improbable_labels_are_not_impossible():
    """The label has a probability of exp(-1e6) at each of two frames, and may be at one or both."""
    logits = np.array([[[0.0, -1e6], [0.0, -1e6]]])
    rest = np.zeros((1, 2)), np.array([[1]]), np.zeros((1, 1))
    value, gradient, _ = _differentiated(logits, logits, *rest)
    np.testing.assert_allclose(value, 1e6, rtol=1e-6)
    np.testing.assert_allclose(gradient[0], [[0.5, -0.5], [0.5, -0.5]], atol=1e-6)
    with jax_defaults():
        np.testing.assert_allclose(_optax_loss(logits, *rest), 1e5, rtol=1e-3)


@pytest.mark.usefixtures("x64")
def test_a_class_that_cannot_occur_is_no_class():
    """And at one frame the blank cannot occur either, which is the same as that it hardly can."""
    logits, direction = np.random.default_rng(0).normal(size=(2, 2, 4, 4))
    rest = np.zeros((2, 4)), np.array([[1, 2], [2, 2]]), np.zeros((2, 2))
    hardly, never = logits.copy(), logits.copy()
    for x, low in ((hardly, -800), (never, -np.inf)):
        x[:, :, 3], x[:, 2, 0] = low, low
    (value, gradient, tangent), expected = (_differentiated(x, direction, *rest) for x in (never, hardly))
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, expected[1], atol=1e-14)
    np.testing.assert_allclose(tangent, expected[2], rtol=1e-12)
    with jax_defaults():
        assert np.isnan(_optax_loss(never, *rest)).all()


def test_what_is_padded_does_not_matter():
    """Nor how much there is of it; and paddings may be of any dtype."""
    logits = np.random.default_rng(0).normal(size=(1, 6, 4))
    labels = np.array([[3, 3, 1]])
    expected, expected_gradient, _ = _differentiated(logits, logits, np.zeros((1, 6)), labels, np.zeros((1, 3)))
    frames, paddings = np.array([[0, 0, 1, 0, 0, 0, 0, 1]]), np.array([[False] * 3 + [True] * 2])
    there = np.flatnonzero(frames[0] == 0)
    padded = np.full((1, 8, 4), np.nan)
    padded[:, there] = logits
    for filler in (-1, 0, 1, 99):
        rest = frames, np.append(labels, [[filler] * 2], axis=1), paddings
        value, gradient, _ = _differentiated(padded, np.zeros_like(padded), *rest)
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_array_equal(gradient[:, there], expected_gradient)
        np.testing.assert_array_equal(gradient[0, frames[0] == 1], 0)
        _, blank, label = _forward_probs(padded, *rest)
        np.testing.assert_array_equal(blank[:, :, 4:], -IMPOSSIBLE)
        np.testing.assert_array_equal(label[:, :, 3:], -IMPOSSIBLE)
        np.testing.assert_array_equal(label[2], label[1])
    with jax_defaults():
        assert np.isnan(_optax_loss(padded, *rest)).all()


@pytest.mark.parametrize("frames,labels", [(0, 0), (0, 2), (3, 0)])
def test_no_frames_or_no_labels(frames: int, labels: int):
    logits = np.random.default_rng(0).normal(size=(2, frames, 3))
    loss, blank, label = _forward_probs(logits, np.zeros((2, frames)), np.ones((2, labels), int), np.zeros((2, labels)))
    assert blank.shape == (frames, 2, labels + 1)
    assert label.shape == (frames, 2, labels)
    expected = IMPOSSIBLE if labels else -np.log(np.exp(logits)[:, :, 0] / np.exp(logits).sum(-1)).sum(1)
    np.testing.assert_allclose(loss, np.broadcast_to(expected, 2), rtol=1e-6)


def test_labels_may_be_of_any_integer_dtype():
    logits = np.random.default_rng(0).normal(size=(1, 2, 300))
    rest = np.zeros((1, 2)), np.array([[200]]), np.zeros((1, 1))
    for dtype in (np.uint8, np.uint32):
        loss = _loss(logits, rest[0], rest[1].astype(dtype), rest[2])
        np.testing.assert_allclose(loss, _loss(logits, *rest), rtol=1e-6)


def test_a_logit_of_nan_the_blank_as_a_label_and_paddings_in_between_are_seen():
    logits = np.random.default_rng(0).normal(size=(3, 3, 3))
    logits[2, 1, 2] = np.nan
    labels, frames, paddings = np.array([[0, 0], [1, 0], [1, 0]]), np.zeros((3, 3)), _padding([1, 1, 1], 2)
    np.testing.assert_array_equal(np.isnan(_loss(logits, frames, labels, paddings)), [True, False, True])
    with jax_defaults():
        assert np.isfinite(_optax_loss(logits, frames, labels, paddings)[0])
    message = jax.jit(checkify.checkify(losses.ctc_loss))(logits, frames, np.ones_like(labels), 1 - paddings)[0].get()
    assert "`ctc_loss(label_paddings=...)` must be zeros and then ones in every row" in message


def test_mistakes_are_named():
    logits = jnp.zeros((2, 5, 4))
    arguments: dict[str, Any] = {"logit_paddings": jnp.zeros((2, 5)), "label_paddings": jnp.zeros((2, 3))}
    with refused("`ctc_loss` needs `labels` of shape (2, labels) to match `logits` of shape (2, 5, 4), got (3,)."):
        losses.ctc_loss(logits, **arguments, labels=jnp.ones(3, int))
    with refused("`ctc_loss(labels=...)` must hold integers, got ", " float32"):
        losses.ctc_loss(logits, **arguments, labels=jnp.ones((2, 3)))
    for blank in (4, -1):
        with refused(f"`ctc_loss(blank_id={blank})` must be a class from 0 to 3: `logits` has shape (2, 5, 4)."):
            losses.ctc_loss(logits, **arguments, labels=jnp.ones((2, 3), int), blank_id=blank)

r"""`hypergradient`: the derivative of a loss after training with respect to hyperparameters, kept within their ranges.

Every learned hyperparameter $h$ has an open interval $(a, b)$ and is a function of an unconstrained value $x$, on which
any optimizer may act:

$$
h = a + e^x \quad (b = \infty), \qquad h = a + (b - a)\,\sigma(x) \quad (b < \infty), \qquad h = x \quad (a = -\infty).
$$

So a learning rate is learned by its logarithm, and a decay such as `b1` by its logit.
"""

import math
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._plugin.arguments import AT_LEAST_ONE, NEVER_NEGATIVE, PROPER_FRACTION, WHOLE_OR_ZERO, Requirement, check_integer
from .._plugin.arrays import is_key_data
from .._plugin.messages import listing
from .._plugin.transforms import find_paths
from .._plugin.trees import as_argument, dotted, joined
from ..authoring import DECAY, FRACTION, NON_NEGATIVE, POSITIVE, WHOLE, AbstractTransform, default_float
from ._sweep import check_optimizer, refuse_absent

INF = math.inf
Values = dict[str, Array]
Optimizer = TypeVar("Optimizer", bound=AbstractTransform)


class Interval(NamedTuple):
    """The open interval of a hyperparameter, and the map from the real line to it."""

    low: float
    high: float

    def unconstrained(self, value: float) -> float:
        """The real number that is mapped to a value."""
        if self.low == -INF:
            return value
        if self.high == INF:
            return math.log(value - self.low)
        return math.log(value - self.low) - math.log(self.high - value)

    def value(self, x: Array) -> Array:
        """The value that belongs to a real number; never the upper bound itself, to which it would be rounded."""
        if self.low == -INF:
            return x
        if self.high == INF:
            return self.low + jnp.exp(x)
        below = np.nextafter(np.asarray(self.high, x.dtype), np.asarray(self.low, x.dtype))
        return jnp.minimum(self.low + (self.high - self.low) * jax.nn.sigmoid(x), below)


EVERYWHERE = Interval(-INF, INF)
INTERVALS: dict[Requirement | None, Interval] = {
    **dict.fromkeys((DECAY, FRACTION, PROPER_FRACTION), Interval(0, 1)),
    **dict.fromkeys((POSITIVE, NON_NEGATIVE, NEVER_NEGATIVE, WHOLE_OR_ZERO), Interval(0, INF)),
    **dict.fromkeys((AT_LEAST_ONE, WHOLE), Interval(1, INF)),
}


Variables = dict[str, tuple[int, Interval]]  # by dotted path: place among the leaves of the optimizer, and interval


class Hypergradient(Generic[Optimizer]):
    """The loss after training and its derivative, as functions of the unconstrained values of some hyperparameters.

    Returned by `hypergradient`.

    Attributes:
        start: the unconstrained values of the optimizer that was given, by dotted path.
        bounds: the open interval of each learned hyperparameter, by dotted path.
    """

    def __init__(self, train: Callable[..., Any], optimizer: Optimizer, variables: Variables, has_aux: bool):
        self._leaves, self._treedef = jtu.tree_flatten(optimizer)
        self._variables, self._name = variables, type(optimizer).__name__
        self.start: Values = {path: self._unconstrained(path) for path in variables}
        self.bounds = {path: (interval.low, interval.high) for path, (_, interval) in variables.items()}

        def loss(values: Values, args: tuple[Any, ...]) -> Any:
            out = train(self.optimizer(values), *args)
            _check_loss(out, has_aux)
            return out

        self._value_and_grad = eqx.filter_jit(jax.value_and_grad(loss, has_aux=has_aux))

    def __repr__(self) -> str:
        return f"Hypergradient({self._name}: {', '.join(self._variables)})"

    def __call__(self, values: Values, *args: PyTree) -> tuple[Any, Values]:
        """Return the loss after training, and its derivative with respect to the unconstrained values.

        Args:
            values: the unconstrained values, by dotted path, such as `start`.
            *args: further arguments of `train`, such as a random key.
        """
        return self._value_and_grad(values, args)

    def optimizer(self, values: Values) -> Optimizer:
        """Return the optimizer with the hyperparameters that belong to unconstrained values."""
        leaves = list(self._leaves)
        for path, (place, interval) in self._variables.items():
            leaves[place] = interval.value(jnp.asarray(values[path]))
        return self._treedef.unflatten(leaves)

    def _unconstrained(self, path: str) -> Array:
        place, interval = self._variables[path]
        leaf = self._leaves[place]
        if not interval.low < float(leaf) < interval.high:
            raise ValueError(
                f"`{path}` of {self._name} is {float(leaf):g}, and it is learned within the open interval "
                f"({interval.low:g}, {interval.high:g}). Start from a value inside it, or give other bounds: "
                f"`{as_argument(path, '(low, high)')}`."
            )
        return jnp.asarray(interval.unconstrained(float(leaf)), getattr(leaf, "dtype", default_float()))


def _check_loss(out: Any, has_aux: bool) -> None:
    """Raise an error unless the training returned a scalar loss, and a pair with it if `has_aux`."""
    if has_aux and not (isinstance(out, tuple) and len(out) == 2):
        raise TypeError(
            f"With `has_aux=True`, `train` must return a pair, `(loss, aux)`, and it returned {_kind(out)}."
        )
    loss: Any = out[0] if has_aux else out
    if not hasattr(loss, "dtype") or jnp.shape(loss) != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise TypeError(
            f"`train` must return the loss to be differentiated, a real scalar, and it returned {_kind(loss)}. For "
            f"metrics beside the loss, return `(loss, metrics)` and write `has_aux=True`."
        )


def _kind(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else f"an object of type `{type(x).__name__}`"


def hypergradient(
    train: Callable[..., Any],
    optimizer: Optimizer,
    /,
    *names: str,
    has_aux: bool = False,
    **bounds: tuple[float | int, float | int],
) -> Hypergradient[Optimizer]:
    r"""Return the derivative of the loss after training with respect to some hyperparameters of an optimizer.

        loss_and_grad = sweeps.hypergradient(train, mx.AdamW(1e-5), "learning_rate", "b1")
        values, outer = loss_and_grad.start, mx.Lion(schedules.CosineDecay(0.3, 50), b1=0.5, b2=0.5)
        state = outer.init(values)
        for _ in range(50):
            loss, grads = loss_and_grad(values, key)
            values, state = outer.step(grads, state, values)
        optimizer = loss_and_grad.optimizer(values)

    It is `jax.value_and_grad` with respect to the optimizer, compiled, in variables that keep every hyperparameter $h$
    inside its open interval $(a, b)$: $h = a + e^x$ if $b = \infty$, $h = a + (b - a)\,\sigma(x)$ if both bounds are
    finite. The interval follows from the declaration of the hyperparameter: $(0, 1)$ for decays such as `b1`, and $(0,
    \infty)$ for numbers that can't be negative and for positive numbers without a declared range, such as a learning
    rate. Only the named hyperparameters are learned.

    The training is differentiated in reverse mode, for which a `jax.lax.scan` stores the model and the state of every
    step; `checkpointed_scan` stores far fewer. The derivative of a training whose steps are too large for the curvature
    is huge and useless (Metz et al., 2019): begin with a learning rate that is too small, and use the sign of the
    derivative, as Lion does. The best constant rate is often next to those that diverge, where the loss is a rough
    function of the rate: keep the values with the lowest loss, which need not be the last.

    References:
        Maclaurin, Duvenaud & Adams, "Gradient-based Hyperparameter Optimization through Reversible Learning", ICML
        2015. https://arxiv.org/abs/1502.03492
        Metz et al., "Understanding and correcting pathologies in the training of learned optimizers", ICML 2019.
        https://arxiv.org/abs/1810.10180

    Args:
        train: function of an optimizer, and of further arguments, that returns the loss to be differentiated, such as
            the validation loss after training.
        optimizer: the optimizer from which the search begins; whatever is not named stays as it is.
        *names: the hyperparameters to learn, by the names of `replace`: a field, a dotted path, the end of one, or a
            pattern. The name of a schedule or of a tuple means all numbers in it but those that are at an end of
            their interval, such as a `transition_begin` of 0, which stay as they are.
        has_aux: whether `train` returns a pair, the loss and anything else, as for `jax.value_and_grad`.
        **bounds: hyperparameters to learn with an open interval of their own, `b1=(0.5, 0.99)`; the bounds may be
            infinite.

    Raises:
        ValueError: if there is no such hyperparameter, if it is an option, or if its value is not inside the interval.
        TypeError: if `train` doesn't return a scalar.
    """
    check_optimizer("sweeps.hypergradient", optimizer)
    if not callable(train) or isinstance(train, AbstractTransform):
        raise TypeError(
            f"`sweeps.hypergradient` needs the training as a function, `train(optimizer, ...)`; got {train!r}."
        )
    if not names and not bounds:
        raise ValueError(
            "`sweeps.hypergradient` needs the name of at least one hyperparameter: "
            '`hypergradient(train, optimizer, "learning_rate")`.'
        )
    intervals = dict.fromkeys(names) | {name: _interval(name, pair) for name, pair in bounds.items()}
    variables: Variables = {}
    for name, interval in intervals.items():
        variables |= _variables(optimizer, name, interval)
    return Hypergradient(train, optimizer, variables, has_aux)


def _interval(name: str, pair: Any) -> Interval:
    try:
        low, high = map(float, pair)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`sweeps.hypergradient({name}=...)` must be a pair of bounds, such as "
            f"`{as_argument(name, '(0.5, 0.99)')}`, got {pair!r}."
        ) from error
    if not low < high or (low == -INF and high < INF):
        raise ValueError(
            f"`sweeps.hypergradient({name}={pair!r})` must be an interval, with the lower bound first; if that is "
            f"infinite, so must be the other."
        )
    return Interval(low, high)


def _variables(optimizer: AbstractTransform, name: str, interval: Interval | None) -> Variables:
    """The numbers that a name refers to, in the given interval, or else in that of their declaration or their sign."""
    paths = find_paths(optimizer, name, "sweeps.hypergradient")
    refuse_absent(f"sweeps.hypergradient({name!r})", optimizer, name, paths)
    prefixes = list(map(joined, paths))
    variables: Variables = {}
    at_an_end: set[str] = set()
    for place, (keys, leaf) in enumerate(jtu.tree_leaves_with_path(optimizer)):
        path = dotted(keys)
        if any(f"{path}.".startswith(f"{prefix}.") for prefix in prefixes) and not is_key_data(leaf):
            if np.shape(leaf):
                raise ValueError(f"`{path}` is an array: write `eqx.filter_value_and_grad(train)(optimizer, ...)`.")
            by_sign = INTERVALS[POSITIVE] if float(leaf) > 0 else EVERYWHERE
            variables[path] = place, interval or INTERVALS.get(_requirement(optimizer, keys), by_sign)
            if interval is None and path not in prefixes and float(leaf) in variables[path][1]:
                at_an_end.add(path)
    if at_an_end < variables.keys():
        variables = {path: x for path, x in variables.items() if path not in at_an_end}
    if not variables:
        raise ValueError(
            f"`sweeps.hypergradient({name!r})`: `{name}` of {type(optimizer).__name__} is not a hyperparameter, so the "
            f"loss has no derivative with respect to it. There are {listing(optimizer.hyperparameters())}."
        )
    return variables


def _requirement(module: Any, keys: tuple[Any, ...]) -> Requirement | None:
    """The requirement that the field of a leaf was declared with."""
    needs = None
    for key in keys:
        if isinstance(module, eqx.Module):
            needs = module.__dataclass_fields__[key.name].metadata.get("needs")
            module = getattr(module, key.name)
        else:
            module = module[key.idx if hasattr(key, "idx") else key.key]
    return needs


def checkpointed_scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    *,
    segments: int | None = None,
) -> tuple[PyTree, PyTree]:
    r"""Return what `jax.lax.scan` returns, with less memory when it is differentiated.

    The reverse mode needs the intermediate values of every step. Here only the carries between segments are stored, and
    each segment is recomputed when its derivative is needed: $O(k + n/k)$ carries for $n$ steps in $k$ segments, and so
    $O(\sqrt{n})$ by default, for one more forward pass (Chen et al., 2016).

    References:
        Chen, Xu, Zhang & Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
        https://arxiv.org/abs/1604.06174

    Args:
        body: function of the carry and of one element of `xs` that returns the next carry and an output.
        init: the first carry.
        xs: the elements, with a leading axis; None if there are none.
        length: the number of steps, if there are no `xs`.
        segments: the number of segments; by default, about the square root of the number of steps.

    Returns:
        The last carry and the outputs, with a leading axis.
    """
    lengths = {int(np.shape(x)[0]) for x in jtu.tree_leaves(xs)} | ({length} if length is not None else set())
    if len(lengths) != 1:
        raise ValueError(
            f"`sweeps.checkpointed_scan` needs one number of steps, by `length` or by the leading axis of `xs`; got "
            f"{listing(sorted(lengths))}."
        )
    (n,) = lengths
    segments = max(math.isqrt(n), 1) if segments is None else segments
    check_integer("sweeps.checkpointed_scan", "segments", segments)

    def scan(carry: PyTree, begin: int, count: int, steps: int) -> tuple[PyTree, PyTree]:
        """Scan segments of equal length."""

        def segment(carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
            return jax.lax.scan(body, carry, xs, length=steps)

        end = begin + count * steps
        parts = jax.tree.map(lambda x: x[begin:end].reshape(count, steps, *x.shape[1:]), xs)
        carry, out = jax.lax.scan(jax.checkpoint(segment, prevent_cse=False), carry, parts, length=count)
        return carry, jax.tree.map(lambda y: y.reshape(end - begin, *y.shape[2:]), out)

    steps = max(n // segments, 1)
    carry, out = scan(init, 0, n // steps, steps)
    if rest := n % steps:
        carry, last = scan(carry, n - rest, 1, rest)
        out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, last)
    return carry, out

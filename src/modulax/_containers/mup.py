"""`mup`: the maximal update parametrization, from the shapes of a model and of a narrow one."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._protocol.container import check_optimizer
from .._protocol.frozen import value_at
from .._protocol.masks import select
from .._protocol.patterns import by_path
from .._protocol.transform import AbstractTransform, everything_in, extra_arguments
from .._roles.find import model_of, roles_of
from .._roles.role import AbstractRole, Hidden
from .._support.arithmetic import default_float, is_inexact_array
from .._support.checks import check_option, listing
from .._support.types import P, Params
from .._support.wrong_calls import explained
from .._transforms.by_path import ScaleByPath
from ..tree._math import is_state_index, shapes_of
from ..tree._paths import Names, as_pattern, leaves_by_names, matches, named_leaves
from .chain import Chain
from .order import refuse_multipliers

Layout = Literal["in_out", "out_in"]


class _Leaf(NamedTuple):
    """How much wider a parameter is than that of the narrow model.

    Args:
        kind: `"vector"` (biases, scales and weights from a fixed size), `"hidden"` or `"output"`.
        fan_in: the ratio of the fan-in.
        fan_out: the ratio of the fan-out.
    """

    kind: str
    fan_in: float = 1.0
    fan_out: float = 1.0


@explained
def mup(
    optimizer: AbstractTransform,
    params: P,
    base_params: Params,
    *,
    like: Literal["adam", "sgd"] | None = None,
    layout: Layout | Mapping[str, Layout] | None = None,
) -> tuple[Chain, P]:
    r"""Scale learning rates and initial weights by the width of a model (muP), so that a tuned rate fits all widths.

        base_model = make_model(width=128, key=key)  # the width at which the learning rate was tuned
        model = make_model(width=2048, key=key)
        optimizer, model = mup(AdamW(3e-3), model, base_model)

    `mup` compares the shapes of the model with those of a narrow one. An axis that grows is part of the width: let the
    fan-in of a weight grow by $r_{\text{in}}$, and the fan-out by $r_{\text{out}}$. The learning rate is multiplied by
    the numbers of table 3 of the paper:

    * input weights (only the fan-out grows), biases and norms: $1$ for Adam, $r_{\text{out}}$ for SGD;
    * hidden weights (both grow): $1 / r_{\text{in}}$ for Adam, $r_{\text{out}} / r_{\text{in}}$ for SGD;
    * output weights (only the fan-in grows): $1 / r_{\text{in}}$ for both. The initial weights are multiplied by
      $1 / \sqrt{r_{\text{in}}}$.

    In this form of muP the model has no multipliers. It assumes an initialization with variance $1/\text{fan-in}$ for
    weights, which is the default of Equinox and Flax, and a constant variance for embeddings: give Flax's `Embed` an
    `embedding_init=nnx.initializers.normal(1.0)`. The bias of a layer is multiplied by $\sqrt{r_{\text{in}}}$ of its
    weight, since Equinox draws it with that variance too; zeros stay zeros. Change two things in the model yourself:
    divide attention logits by the size of a head instead of its square root, and don't tie weights.

    The result is `Chain(optimizer, ScaleByPath(...))`, so a decoupled weight decay is multiplied too. To keep the decay
    the same at all widths, take it out of the optimizer: `Chain(mup(Adam(rate), ...)[0], AddDecayedWeights(-rate *
    decay))`.

    Initial weights are multiplied once: call `mup` with freshly initialized parameters, and restore a checkpoint
    afterwards. `sweeps.coordinate_check` shows whether a model is in muP.

    Args:
        optimizer: the optimizer, with the learning rate for the narrow model.
        params: the initial parameters, or the whole model.
        base_params: those of the narrow model, with the same paths; a tree of `jax.ShapeDtypeStruct` is enough.
        like: which column of the table applies: `"adam"` for optimizers that normalize each entry of the gradient
            (Adam, RMSProp, Adagrad, Lion), `"sgd"` for those that don't. By default, `mup` tries the optimizer on a
            small array; in a `Partition`, it tries each optimizer. In the training of a sweep, where hyperparameters
            have no values, it uses substitutes.
        layout: whether weights have the shape `(in, out)`, `"in_out"`, or `(out, in)`, `"out_in"`; or a mapping from
            patterns to these. Layers of Equinox and Flax are known; biases, gains and tables of positions have none.

    Returns:
        the optimizer, and the parameters with their initial scale.

    Raises:
        ValueError: if paths differ, if it is not known what an axis means or which column applies, as with an
            elementwise clip before SGD or a trust ratio, or if nothing may change the updates of the optimizer, as in
            `layerwise_decay`.

    References:
        Yang et al., [Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter
        Transfer](https://arxiv.org/abs/2203.03466), 2022.
    """
    check_optimizer("mup(optimizer, params, base_params)", optimizer, params, base_params)
    refuse_multipliers("mup", optimizer, "mup({}, ...)[0]")
    leaves = _compared(params, base_params, layout)
    if like is not None:
        check_option("mup", "like", like, ("adam", "sgd"))
    likes = _columns(optimizer, shapes_of(params), leaves) if like is None else dict.fromkeys(leaves, like)
    rates = {names: _rate(leaf, likes[names]) for names, leaf in leaves.items()}
    scales = iter([_initial_scale(names, leaves) for names in leaves])

    def scaled(x: Any) -> Any:
        if shapes_of(x) is None:
            return x
        scale = next(scales)
        return x if scale == 1.0 or not is_inexact_array(x) else jnp.asarray(x) * jnp.asarray(scale, x.dtype)

    multipliers = ScaleByPath(_patterns(rates, shapes_of(params)))
    return Chain(optimizer, multipliers), jtu.tree_map(scaled, params, is_leaf=is_state_index)


def _rate(leaf: _Leaf, like: str) -> float:
    """The multiplier of the learning rate."""
    if like == "adam":
        return 1.0 if leaf.kind == "vector" else 1 / leaf.fan_in
    return leaf.fan_out if leaf.kind == "vector" else leaf.fan_out / leaf.fan_in


def _initial_scale(names: Names, leaves: Mapping[Names, _Leaf]) -> float:
    """Initialization multiplier of a weight, or of the bias of the same layer."""
    if leaves[names].kind == "output":
        return leaves[names].fan_in ** -0.5
    if names and names[-1].split(".")[-1] == "bias":  # the key of a flat dict is a whole path
        layer = names[-1].removesuffix("bias")
        beside = (leaves.get((*names[:-1], layer + name)) for name in ("weight", "kernel"))
        return next((x.fan_in**0.5 for x in beside if x is not None), 1.0)
    return 1.0


def _compared(params: Params, base_params: Params, layout: Any) -> dict[Names, _Leaf]:
    """Every parameter, by its path, compared with that of the narrow model."""
    wide, narrow = (leaves_by_names("mup", shapes_of(x)) for x in (params, base_params))
    if unpaired := [names for names in (*wide, *narrow) if names not in wide or names not in narrow]:
        where = "the model" if unpaired[0] in wide else "the narrow one"
        raise ValueError(
            f"`mup` needs two models that differ in their width only; of {listing(map('.'.join, unpaired))}, the "
            f"first is in {where} alone."
        )
    found = dict(roles_of(model_of(shapes_of(params)), ()))
    if layout is not None:
        found |= _given_layouts(layout, shapes_of(params), found)
    return {names: _leaf(".".join(names), x.shape, narrow[names].shape, found[names]) for names, x in wide.items()}


def _given_layouts(layout: Any, tree: PyTree, found: Mapping[Names, AbstractRole]) -> dict[Names, AbstractRole]:
    """The roles that the argument `layout` gives, by path; one for the whole model is meant for the unknown ones."""
    patterns = {"*": layout} if isinstance(layout, str) else layout
    labels = dict(zip(found, by_path(patterns, default="").labels(tree), strict=True))
    ndims = {names: len(x.shape) for names, x in named_leaves(tree)}
    given = {}
    for names, label in labels.items():
        check_option("mup", "layout", label or "in_out", ("in_out", "out_in"))
        # A vector, of whatever shape, has no axis that is the input.
        is_vector = ndims[names] < 2 or found[names].is_vector
        is_open = not is_vector and not (isinstance(layout, str) and _is_known(found[names]))
        if label and is_open:
            out = 0 if label == "out_in" else ndims[names] - 1
            given[names] = Hidden(fan_in=tuple(i for i in range(ndims[names]) if i != out), fan_out=(out,))
    return given


def _is_known(role: AbstractRole) -> bool:
    return role.is_known and bool(role.fan_in)


def _leaf(path: str, wide: Sequence[int], narrow: Sequence[int], role: AbstractRole) -> _Leaf:
    ratios = _ratios(path, wide, narrow)
    if not ratios or len(wide) == 1 or role.is_vector:
        return _Leaf("vector", fan_out=max(ratios.values(), default=1.0))
    _check_axes(path, wide, narrow, role, list(ratios.values()))
    if not _is_known(role):  # both axes grow alike
        return _Leaf("hidden", *ratios.values())
    fan_in, fan_out = (math.prod(ratios.get(i, 1.0) for i in axes) for axes in (role.fan_in, role.fan_out))
    if fan_in == 1.0:
        return _Leaf("vector", fan_out=fan_out)
    return _Leaf("output", fan_in=fan_in) if fan_out == 1.0 else _Leaf("hidden", fan_in, fan_out)


def _ratios(path: str, wide: Sequence[int], narrow: Sequence[int]) -> dict[int, float]:
    """The axes that grow, and how much."""
    if len(wide) != len(narrow):
        raise ValueError(f"`mup`: `{path}` has the shapes {tuple(wide)} and {tuple(narrow)} in the two models.")
    return {i: n / m for i, (n, m) in enumerate(zip(wide, narrow, strict=True)) if n != m}


def _check_axes(
    path: str, wide: Sequence[int], narrow: Sequence[int], role: AbstractRole, ratios: Sequence[float]
) -> None:
    """Raise an error if it is not known which of the axes that grow is the input."""
    if len(ratios) > 2:
        raise ValueError(
            f"`mup`: {len(ratios)} axes of `{path}` grow, {tuple(narrow)} to {tuple(wide)}. Let the width be in two of "
            f"them: change the number of heads and keep the size of a head, for example."
        )
    if not _is_known(role) and (len(ratios) == 1 or ratios[0] != ratios[1]):
        raise ValueError(
            f"`mup` doesn't know which axis of `{path}` is the input: {tuple(narrow)} grows to {tuple(wide)}. Write "
            f'`layout="in_out"` if the weights have the shape (in, out), as in `x @ w`, or `layout="out_in"`; or for '
            f'some of them, `layout={{"{path}": "in_out"}}`.'
        )


def _patterns(rates: Mapping[Names, float], tree: PyTree) -> dict[str, float]:
    """Patterns for the multipliers: `*` in the place of numbers, if that means the same, and for those that are 1."""
    patterns: dict[str, float] = {}
    for names, rate in rates.items():
        if rate != 1.0:
            path = ".".join(names)
            every = re.sub(r"\d+", "*", as_pattern(path))
            same = all(r == rate for x, r in rates.items() if matches(".".join(x), every))
            patterns[every if same else as_pattern(path)] = rate
    if not patterns or 1.0 in rates.values():
        # `by_path` refuses a parameter that no pattern matches.
        patterns["*"] = 1.0
    assert by_path(patterns).labels(tree) == list(rates.values())
    return patterns


def _columns(optimizer: AbstractTransform, tree: PyTree, leaves: Mapping[Names, _Leaf]) -> dict[Names, str]:
    """The column of the table for each parameter, from trials, one for each way through the optimizer."""
    ways: dict[Any, list[Names]] = {}
    for names, way in zip(leaves, _ways(optimizer, tree), strict=True):
        if way is not None:
            ways.setdefault(way, []).append(names)
    found: dict[Names, str] = {}
    for group in ways.values():
        place = min(group, key=lambda names: leaves[names].kind != "hidden")  # it may treat others in another way
        if (like := _behaves_like(optimizer, tree, list(leaves).index(place))) is not None:
            found |= dict.fromkeys(group, like)
    if not found:
        raise ValueError(f"`mup` tried the optimizer, which took no step in {_MOST_CALLS} calls. {_WRITE_LIKE}")
    return {names: found.get(names, "adam") for names in leaves}  # any for those that are frozen


def _ways(transform: AbstractTransform, tree: PyTree) -> list[tuple[Any, ...] | None]:
    """The transforms that the updates of each leaf go through, without their numbers; None if it is frozen."""
    parts = [*transform.each_part()]
    ways: list[Any] = [() if parts else (jtu.tree_structure(transform),)] * len(jtu.tree_leaves(tree))
    for part in parts:
        try:
            seen = part._received(tree)
        except ValueError:  # inside `Flatten`, patterns are for the paths of other arrays
            continue
        further = iter(_ways(part.transform, select(tree, seen)))
        ways = [_joined(way, next(further)) if here else way for way, here in zip(ways, seen, strict=True)]
    frozen = transform._effect(tree).frozen or [False] * len(ways)
    return [None if is_frozen else way for way, is_frozen in zip(ways, frozen, strict=True)]


def _joined(way: tuple[Any, ...] | None, further: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return None if way is None or further is None else (*way, *further)


def _behaves_like(optimizer: AbstractTransform, tree: PyTree, place: int) -> Literal["adam", "sgd"] | None:
    """The column of the table that an optimizer belongs to, from its steps for a gradient of rank one.

    An optimizer like Adam makes all entries of its update equal in size, however large the gradient is. One like SGD
    keeps their proportions, and the size of a small gradient. It is None if there is no step.
    """
    try:
        if any(map(extra_arguments, everything_in(optimizer))):
            raise ValueError("It needs extra arguments.")
        with jax.ensure_compile_time_eval():  # under a trace, such as that of a sweep
            behavior = _Trial(_with_known_numbers(optimizer), tree, place).behavior()
    except Exception as error:
        raise ValueError(f"`mup` could not try the optimizer on a small array. {_WRITE_LIKE}") from error
    if behavior is None:
        return None
    is_adam, is_sgd, is_cut, depends = behavior
    if is_cut:
        raise ValueError(
            f"`mup` doesn't know which rule holds: large entries of the gradient are cut, as by `Clip`, and small ones "
            f"are not. {_WRITE_LIKE}"
        )
    if depends:
        raise ValueError(
            f"`mup` doesn't know which rule holds: the step depends on the size of the parameters, as with the trust "
            f"ratio of `LARS` and `LAMB`. {_WRITE_LIKE}"
        )
    if is_adam or is_sgd:
        return "adam" if is_adam else "sgd"
    raise ValueError(f"`mup` doesn't know which rule holds for this optimizer. {_WRITE_LIKE}")


def _is_close(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(x.all()) and np.allclose(x, y, rtol=0.05, atol=0.0)


def _with_known_numbers(optimizer: AbstractTransform) -> AbstractTransform:
    """The optimizer with some number in the place of each that is traced: the column doesn't depend on them."""

    def known(path: tuple[Any, ...], x: Any) -> Any:
        if not isinstance(x, Tracer):
            return x
        *outer, name = (getattr(key, "name", None) or getattr(key, "key", None) or key.idx for key in path)
        fields = getattr(value_at(optimizer, tuple(outer)), "__dataclass_fields__", {})
        return np.full(x.shape, _accepted(fields[name]) if name in fields else 0.1, x.dtype)

    return jtu.tree_map_with_path(known, optimizer)


def _accepted(field: dataclasses.Field) -> float:
    """A number that a field accepts: its default, else one for a rate or decay, else one for a number of steps."""
    default: Any = field.default
    is_number = isinstance(default, (int, float))
    if is_number and (default or field.name.startswith("eps")):  # with other zeros, an update may be zero
        return default
    needs = field.metadata.get("needs")
    return 0.1 if needs is None or needs.is_met_by(np.float32(0.1)) else 100.0


class _Trial:
    """Steps of an optimizer on a small array in the place of one parameter.

    Args:
        optimizer: the optimizer.
        tree: the parameters.
        place: the position of the parameter.
    """

    def __init__(self, optimizer: AbstractTransform, tree: PyTree, place: int):
        leaves, self._treedef = jtu.tree_flatten(tree)
        self._optimizer, self._place, self._count = optimizer, place, len(leaves)
        self.pattern = functools.reduce(np.multiply.outer, [np.array([1.0, 2.0])] * max(leaves[place].ndim, 1))

    def behavior(self) -> tuple[bool, bool, bool, bool] | None:
        """Return whether it is like Adam, like SGD, cuts large gradients, and depends on the size of the parameters."""
        large = self.step(1e3)
        if not large.any():
            return None
        small, twice = self.step(1e-3), self.step(2e-3)
        is_adam = _is_close(large, np.full_like(large, large.max()))
        is_sgd = _is_close(small, self.pattern * small.min()) and _is_close(twice, 2 * small)
        # One that adapts to a sum, as Adagrad does, begins like SGD. Large gradients end that, unless they are cut.
        after = self.step(1e-2, after=1e2) if is_adam and is_sgd else large
        is_cut = is_adam and is_sgd and _is_close(after, self.pattern * after.min())
        scale, found = (1e3, large) if is_adam else (1e-3, small)
        return is_adam, is_sgd, is_cut, (is_adam or is_sgd) and not _is_close(self.step(scale, size=1.0), found)

    def step(self, scale: float, size: float = 0.1, after: float | None = None) -> np.ndarray:
        """Return how much an update, after a few steps, changes with the sign of the gradients.

        A weight decay changes nothing in it.

        Args:
            scale: the size of the gradients.
            size: the size of the parameters.
            after: the size of the gradients in all steps but the last, whose signs then stay.
        """
        updates = [self._update(sign * scale, size, sign * scale if after is None else after) for sign in (1.0, -1.0)]
        return np.abs(updates[0] - updates[1]) / 2

    def _update(self, last: float, size: float, before: float) -> np.ndarray:
        """The update of the last of a few calls that takes a step.

        The first may have the learning rate zero, and those of RAdam are like SGD's. `MultiSteps` waits longer.
        """
        params = self._like(np.full_like(self.pattern, size))
        state, grads = self._optimizer.init(params), [self._like(x * self.pattern) for x in (before, last)]
        found = np.zeros_like(self.pattern)
        for n in range(_MOST_CALLS):
            updates, new = self._optimizer.update(grads[1], state, params)
            update = np.asarray(jtu.tree_leaves(updates)[0], np.float64)
            found = update if update.any() else found
            if n + 1 >= _CALLS and found.any():
                break
            _, state = (updates, new) if last == before else self._optimizer.update(grads[0], state, params)
        return found

    def _like(self, x: np.ndarray) -> PyTree:
        leaves = [jnp.asarray(x, default_float()) if i == self._place else None for i in range(self._count)]
        return self._treedef.unflatten(leaves)


_CALLS, _MOST_CALLS = 10, 100


_WRITE_LIKE = (
    'Write `like="adam"` if it normalizes every entry of the gradient, or `like="sgd"` if its step is proportional to '
    "the gradient."
)

"""`mup`: the maximal update parametrization, from the shapes of a model and of a narrow one."""

import dataclasses
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
from .._protocol.hyperparameters import value_at
from .._protocol.patterns import by_path
from .._protocol.transform import AbstractTransform, everything_in, extra_arguments
from .._roles.find import model_of, roles_of
from .._roles.role import AbstractRole, Hidden
from .._support.arithmetic import default_float, is_inexact_array
from .._support.checks import check_option, listing
from .._support.methods import explained
from .._support.types import P, Params
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

    It compares the shapes of the model with those of a narrow one. An axis that grows is part of the width: let the
    fan-in of a weight grow by $r_{\text{in}}$, and the fan-out by $r_{\text{out}}$. The learning rate is multiplied by
    the numbers of table 3 of the paper:

    * input weights (only the fan-out grows), biases and norms: $1$ for Adam, $r_{\text{out}}$ for SGD;
    * hidden weights (both grow): $1 / r_{\text{in}}$ for Adam, $r_{\text{out}} / r_{\text{in}}$ for SGD;
    * output weights (only the fan-in grows): $1 / r_{\text{in}}$ for both. The initial weights are multiplied by
      $1 / \sqrt{r_{\text{in}}}$.

    In this form of muP the model has no multipliers. It assumes an initialization with variance $1/\text{fan-in}$ for
    weights, which is the default of Equinox and Flax, and a constant variance for embeddings: give Flax's `Embed` an
    `embedding_init=nnx.initializers.normal(1.0)`. The bias of a layer is multiplied by $\sqrt{r_{\text{in}}}$ of its
    weight, since Equinox draws it with that variance too; zeros stay zeros. Two things are left to the model:
    attention logits are divided by the size of a head, instead of its square root, and weights are not tied.

    The result is `Chain(optimizer, ScaleByPath(...))`, so a decoupled weight decay is multiplied too. To keep it the
    same at all widths, take it out of the optimizer:
    `Chain(mup(Adam(rate), ...)[0], AddDecayedWeights(-rate * decay))`.

    Initial weights are multiplied once: call it with freshly initialized parameters, and restore a checkpoint after
    it. `sweeps.coordinate_check` shows whether a model is in muP.

    Args:
        optimizer: the optimizer, with the learning rate for the narrow model.
        params: the initial parameters, or the whole model.
        base_params: those of the narrow model, with the same paths; a tree of `jax.ShapeDtypeStruct` is enough.
        like: which column of the table applies: `"adam"` for optimizers that normalize each entry of the gradient
            (Adam, RMSProp, Adagrad, Lion), `"sgd"` for those that don't. By default, `mup` tries the optimizer on a
            small matrix; in the training of a sweep, where the hyperparameters have no values, with others in their
            place.
        layout: whether weights have the shape `(in, out)`, `"in_out"`, or `(out, in)`, `"out_in"`; or a mapping from
            patterns to these. Layers of Equinox and Flax are known; biases, gains and tables of positions have none.

    Returns:
        the optimizer, and the parameters with their initial scale.

    Raises:
        ValueError: if paths differ, if it is not known what an axis means or which column applies, or if nothing may
            change the updates of the optimizer, as in `layerwise_decay`.

    References:
        Yang et al., [Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter
        Transfer](https://arxiv.org/abs/2203.03466), 2022.
    """
    check_optimizer("mup(optimizer, params, base_params)", optimizer, params, base_params)
    refuse_multipliers("mup", optimizer, "mup({}, ...)[0]")
    leaves = _compared(params, base_params, layout)
    like = like or _behaves_like(optimizer, params, leaves)
    check_option("mup", "like", like, ("adam", "sgd"))
    rates = {names: _rate(leaf, like) for names, leaf in leaves.items()}
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


def _behaves_like(
    optimizer: AbstractTransform, params: Params, leaves: Mapping[Names, _Leaf]
) -> Literal["adam", "sgd"]:
    """The column of the table that an optimizer belongs to, from its steps for a gradient of rank one.

    An optimizer like Adam makes all entries of its update equal in size, however large the gradient is. One like SGD
    keeps their proportions, and the size of a small gradient.
    """
    # In the place of a hidden weight, if there is one: the optimizer may treat others in another way.
    place = min(leaves, key=lambda names: leaves[names].kind != "hidden")
    values = dict.fromkeys(leaves) | {place: np.zeros((2, 2), default_float())}
    try:
        if any(map(extra_arguments, everything_in(optimizer))):
            raise ValueError("It needs extra arguments.")
        with jax.ensure_compile_time_eval():  # under a trace, such as that of a sweep
            known = _with_known_numbers(optimizer)
            probe = jtu.tree_structure(shapes_of(params)).unflatten(values.values())
            small, twice, large = (_step_size(known, probe, scale) for scale in (1e-3, 2e-3, 1e3))
    except Exception as error:
        raise ValueError(f"`mup` could not try the optimizer on a small matrix. {_WRITE_LIKE}") from error
    if large.min() > 0 and np.allclose(large, large.max(), rtol=0.05):
        return "adam"
    if small.min() > 0 and np.allclose(small / small[0, 0], _PATTERN, rtol=0.05) and np.allclose(twice, 2 * small):
        return "sgd"
    raise ValueError(f"`mup` doesn't know which rule holds for this optimizer. {_WRITE_LIKE}")


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


_PATTERN = np.outer([1.0, 2.0], [1.0, 2.0])


def _step_size(optimizer: AbstractTransform, probe: PyTree, scale: float) -> np.ndarray:
    """The size of the update after a few steps, since the first may have the learning rate zero."""
    grads = jtu.tree_map(lambda x: jnp.asarray(scale * _PATTERN, x.dtype), probe)
    state, updates = optimizer.init(probe), grads
    for _ in range(3):
        updates, state = optimizer.update(grads, state, probe)
    return np.abs(np.asarray(jtu.tree_leaves(updates)[0], np.float64))


_WRITE_LIKE = (
    'Write `like="adam"` if it normalizes every entry of the gradient, or `like="sgd"` if its step is proportional to '
    "the gradient."
)

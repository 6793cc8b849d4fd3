"""`mup`: the maximal update parametrization, from the shapes of a model and of a narrow one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._protocol.container import check_part
from .._protocol.patterns import by_path, nodes_of
from .._protocol.transform import AbstractTransform, everything_in, extra_arguments
from .._support.arithmetic import is_inexact_array
from .._support.checks import check_option, listing
from .._support.types import P, Params
from .._transforms.by_path import ScaleByPath
from ..tree._math import is_state_index, shapes_of
from ..tree._paths import Names, leaves_by_names, matches, named_leaves
from .chain import Chain

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
            small matrix.
        layout: whether weights have the shape `(in, out)`, `"in_out"`, or `(out, in)`, `"out_in"`; or a mapping from
            patterns to these. Layers of Equinox and Flax are known.

    Returns:
        the optimizer, and the parameters with their initial scale.

    Raises:
        ValueError: if paths differ, or if it is not known what an axis means or which column applies.

    References:
        Yang et al., [Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter
        Transfer](https://arxiv.org/abs/2203.03466), 2022.
    """
    check_part("`mup`: the first argument", optimizer)
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
    if names and names[-1] == "bias":
        beside = (leaves.get((*names[:-1], name)) for name in ("weight", "kernel"))
        return next((x.fan_in**0.5 for x in beside if x is not None), 1.0)
    return 1.0


def _compared(params: Params, base_params: Params, layout: Any) -> dict[Names, _Leaf]:
    """Every parameter, by its path, compared with that of the narrow model."""
    tree = shapes_of(params)
    wide, narrow = (leaves_by_names("mup", shapes_of(x)) for x in (params, base_params))
    if unpaired := [names for names in (*wide, *narrow) if names not in wide or names not in narrow]:
        where = "the model" if unpaired[0] in wide else "the narrow one"
        raise ValueError(
            f"`mup` needs two models that differ in their width only; of {listing('.'.join(x) for x in unpaired)}, the "
            f"first is in {where} alone."
        )
    known = _layouts(tree)
    if layout is not None:
        labels = by_path({"*": layout} if isinstance(layout, str) else layout, default="").labels(tree)
        for names, label in zip(wide, labels, strict=True):
            check_option("mup", "layout", label or "in_out", ("in_out", "out_in"))
            # One layout for the whole model is meant for the leaves whose layout is not known.
            if label and (known[names][0] is None or not isinstance(layout, str)):
                known[names] = label, None
    return {names: _leaf(names, x.shape, narrow[names].shape, *known[names]) for names, x in wide.items()}


def _leaf(names: Names, wide: Sequence[int], narrow: Sequence[int], layout: str | None, rank: int | None) -> _Leaf:
    path = ".".join(names)
    if len(wide) != len(narrow):
        raise ValueError(f"`mup`: `{path}` has the shapes {tuple(wide)} and {tuple(narrow)} in the two models.")
    ratios = [n / m for n, m in zip(wide, narrow, strict=True) if n != m]
    if not ratios:
        return _Leaf("vector")
    if len(wide) == 1 or layout == "vector":
        return _Leaf("vector", fan_out=max(ratios))
    if len(ratios) > 2:
        raise ValueError(
            f"`mup`: {len(ratios)} axes of `{path}` grow, {tuple(narrow)} to {tuple(wide)}. Let the width be in two of "
            f"them: change the number of heads and keep the size of a head, for example."
        )
    if layout is None and (len(ratios) == 1 or ratios[0] != ratios[1]):
        raise ValueError(
            f"`mup` doesn't know which axis of `{path}` is the input: {tuple(narrow)} grows to {tuple(wide)}. Write "
            f'`layout="in_out"` if the weights have the shape (in, out), as in `x @ w`, or `layout="out_in"`; or for '
            f'some of them, `layout={{"{path}": "in_out"}}`.'
        )
    if len(ratios) == 2:
        fan_in, fan_out = ratios if layout != "out_in" else reversed(ratios)
        return _Leaf("hidden", fan_in, fan_out)
    place = next(i for i, (n, m) in enumerate(zip(wide, narrow, strict=True)) if n != m)
    out = len(wide) - (rank or len(wide)) if layout == "out_in" else len(wide) - 1
    return _Leaf("vector", fan_out=ratios[0]) if place == out else _Leaf("output", fan_in=ratios[0])


def _layouts(tree: PyTree) -> dict[Names, tuple[str | None, int | None]]:
    """The layout of every parameter, `"vector"` for biases and scales, and the rank of those that may be stacked.

    It is read from the class of an Equinox layer, or from the name that Flax gives a parameter; else it is None.
    """
    paths, nodes = nodes_of(tree)
    found: dict[Names, tuple[str | None, int | None]] = {}
    for path, (names, _) in zip(paths, named_leaves(tree), strict=True):
        owner = nodes.get(path[:-1])
        name = names[-1] if names else ""
        if name in ("bias", "scale") or isinstance(owner, _NORMS):
            found[names] = "vector", None
        elif name in ("kernel", "embedding") or isinstance(owner, eqx.nn.Embedding):
            found[names] = "in_out", None
        elif isinstance(owner, (eqx.nn.Linear, eqx.nn.GRUCell, eqx.nn.LSTMCell)):
            found[names] = "out_in", 2
        elif isinstance(owner, eqx.nn.Conv):
            found[names] = "out_in", 2 + owner.num_spatial_dims
        else:
            found[names] = None, None
    return found


_NORMS = (eqx.nn.LayerNorm, eqx.nn.RMSNorm, eqx.nn.GroupNorm, eqx.nn.BatchNorm)


def _patterns(rates: Mapping[Names, float], tree: PyTree) -> dict[str, float]:
    """Patterns for the multipliers: `*` in the place of numbers, if that means the same, and for those that are 1."""
    patterns: dict[str, float] = {}
    for names, rate in rates.items():
        if rate != 1.0:
            every = ".".join(re.sub(r"\d+", "*", name) if re.search(r"\d", name) else name for name in names)
            same = all(rates[x] == rate for x in rates if matches(".".join(x), every))
            patterns[every if same else ".".join(names)] = rate
    if len(patterns) == 0 or 1.0 in rates.values():
        patterns["*"] = 1.0
    assert by_path(patterns).labels(tree) == list(rates.values())
    return patterns


def _behaves_like(
    optimizer: AbstractTransform, params: Params, leaves: Mapping[Names, _Leaf]
) -> Literal["adam", "sgd"]:
    """Which column of the table an optimizer belongs to, from its steps for a gradient of rank one.

    An optimizer like Adam makes all entries of its update equal in size, however large the gradient is. One like SGD
    keeps their proportions, and the size of a small gradient.
    """
    kept = next((i for i, leaf in enumerate(leaves.values()) if leaf.kind == "hidden"), 0)
    treedef = jtu.tree_structure(shapes_of(params))
    probe = treedef.unflatten([jnp.zeros((2, 2)) if i == kept else None for i in range(len(leaves))])
    pattern = np.outer([1.0, 2.0], [1.0, 2.0])

    def size(scale: float) -> np.ndarray:
        """The update after a few steps, since the first may have the learning rate zero."""
        grads = jtu.tree_map(lambda x: jnp.asarray(scale * pattern, x.dtype), probe)
        state, updates = optimizer.init(probe), grads
        for _ in range(3):
            updates, state = optimizer.update(grads, state, probe)
        return np.abs(np.asarray(jtu.tree_leaves(updates)[0], np.float64))

    try:
        if any(extra_arguments(x) for x in everything_in(optimizer)):
            raise ValueError("It needs extra arguments.")
        small, twice, large = size(1e-3), size(2e-3), size(1e3)
    except Exception as error:
        raise ValueError(f"`mup` could not try the optimizer on a small matrix. {_WRITE_LIKE}") from error
    if large.min() > 0 and np.allclose(large, large.max(), rtol=0.05):
        return "adam"
    if small.min() > 0 and np.allclose(small / small[0, 0], pattern, rtol=0.05) and np.allclose(twice, 2 * small):
        return "sgd"
    raise ValueError(f"`mup` doesn't know which rule holds for this optimizer. {_WRITE_LIKE}")


_WRITE_LIKE = (
    'Write `like="adam"` if it normalizes every entry of the gradient, or `like="sgd"` if its step is proportional to '
    "the gradient."
)

"""`LowBit`: the moments of any optimizer in 8 or 4 bits."""

import collections
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree, UInt32

from .._protocol.container import AbstractContainer, required_part
from .._protocol.masks import Mask, mask, mask_or_all
from .._protocol.transform import AbstractTransform
from .._support.keys import key, next_keys
from .._support.module import AbstractState, nested, shared
from .._support.placement import typed_like
from .._support.types import Params, State, Updates
from ..numerics._quantized import quantize_together, quantized
from ..tree._leafmap import map_leaves
from ..tree._quantized import dequantize, is_quantized
from ..tree._stacks import stacked_states
from ..tree._state import declarations, owners

# The square root of two: its multiples are spread evenly between 0 and 2^32, and so are those of each second, fourth or
# eighth step, where an accumulation of gradients changes the moments.
_TURN = np.uint32(0x6A09E667)


class LowBitState(AbstractState):
    """State of `LowBit`: the inner state, with `Quantized` arrays in it, and the seed of the next draws.

    The last word of `rng_key` is a phase, to which each step adds a constant. It is None if entries are rounded to the
    nearest code.
    """

    inner_state: State = nested()
    rng_key: UInt32[Array, "..."] | None = shared(None)


class LowBit(AbstractContainer):
    r"""Stores the moments of an optimizer in 8 or 4 bits per entry, as 8-bit Adam does, in a quarter of their memory.

        optimizer = LowBit(AdamW(1e-3))

    At each step, the moments are read from their codes, the inner transform makes its step, and the new moments are
    written. XLA computes this without storing the moments in float32. Every block of entries has its own scale;
    `modulax.states.Quantized` describes the code. AdamW takes 2.06 bytes per parameter in 8 bits and 1.06 in 4 bits,
    instead of 8.

    Fields of a state that are trees like the parameters, such as moments, are stored in fewer bits. Counters, random
    keys, complex arrays, and fields declared `like_params(exact=True)` keep their precision: averages, copies of the
    parameters, accumulated gradients, outer products. `LowBit` can be outside or inside any other container, except
    outside `Offload`, which must be outermost.

    In 8 bits, the steps of AdamW are those in 32 bits: the length differs by 0.1 %, and the cosine of the angle between
    them is 0.999. In 4 bits, the length differs by 2 % in the median, but the direction differs more: the cosine is
    0.91 to 0.94, or 0.92 to 0.95 with `block=32`. Rules that take the sign of a moment, such as Lion, change more: the
    cosine is 0.98 in 8 bits, and about 0.7 in 4.

    Entries are rounded up or down at random, so that an expectation is exact: for a signed moment that of $m$ itself,
    and for an unsigned one that of $1 / \sqrt v$, by which Adam multiplies its step. The draws of an entry are spread
    evenly over the steps, so their errors cancel sooner than those of independent draws. Rounding to the nearest code,
    `stochastic=False`, loses changes smaller than half the distance between two codes. Adam's second moment makes such
    changes, even in 8 bits: its steps become up to 10 % too long within 1000 steps.

    Args:
        inner: the inner transform.
        bits: 8 or 4.
        block: number of entries with a common scale, a power of two; on a TPU, 128 or a multiple of it.
        where: which parameters' moments are quantized: a tree of booleans with the structure of the parameters or a
            prefix of it, a function of the parameters that returns such a tree, or patterns such as `by_path`. By
            default all.
        min_size: arrays with fewer entries are not quantized, such as biases and norms.
        stochastic: whether to round stochastically, or to the nearest code.
        key: a seed, or a JAX key, for stochastic rounding.
        preconditioners: whether the roots of Shampoo and the eigenbases of SOAP are stored in 8 bits, even if moments
            have 4 bits. Outer products keep their dtype: in 8 bits they would lose their small eigenvalues, which the
            roots amplify.

    References:
        Dettmers et al., [8-bit Optimizers via Block-wise Quantization](https://arxiv.org/abs/2110.02861), 2021;
        Li, Chen and Zhu, [Memory Efficient Optimizers with 4-bit States](https://arxiv.org/abs/2309.01507), 2023.
    """

    inner: AbstractTransform = required_part()
    bits: int = eqx.field(static=True, default=8)
    block: int = eqx.field(static=True, default=128)
    where: Mask = mask()
    min_size: int = eqx.field(static=True, default=4096)
    stochastic: bool = eqx.field(static=True, default=True, kw_only=True)
    key: Any = key()
    preconditioners: bool = eqx.field(static=True, default=False, kw_only=True)

    _keeps = "direction"
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True

    def init(self, params: Params) -> LowBitState:
        """Return the initial state of the inner transform, quantized."""
        state = self.inner.init(params)
        if self.where is not None and stacked_states(state):
            raise ValueError(
                "`LowBit(where=...)` chooses single parameters, and `Stacked` inside holds several as one array. Write "
                "`Masked(LowBit(Stacked(...)), mask)`."
            )
        leaves, treedef = jtu.tree_flatten(state)
        mask = mask_or_all(self, self.where, params, "where")
        new = list(leaves)
        for i, (x, declared, owner) in enumerate(zip(leaves, declarations(state), owners(state, params), strict=True)):
            if declared is not None and (bits := self._bits_of(x, declared, mask, owner)):
                # XLA would compute the codes of constants itself, entry by entry, while it compiles.
                x = jax.lax.optimization_barrier(x)
                new[i] = quantized(x, bits, self.block, declared.get("nonnegative", False))
        # Mixed, so that the phases of two seeds are far apart.
        key = next_keys(jnp.asarray(self.key), 0)[0] if self.stochastic else None
        return LowBitState(treedef.unflatten(new), key)

    def update(
        self, updates: Updates, state: LowBitState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, LowBitState]:
        """Run a step of the inner transform on the moments that the codes stand for."""
        # In one program with the quantization: XLA computes the entries twice, for the scale of a block and for the
        # codes, and doesn't store them in float32.
        inner_state = _divided_like(dequantize(state.inner_state), updates)
        updates, new = self.inner.update(updates, inner_state, params, **extra)
        # No keys for the arrays: their seeds are from the raw data, of which the last word is a phase.
        next_key = None if state.rng_key is None else state.rng_key.at[-1].add(_TURN)
        return updates, LowBitState(_quantized_like(new, state.inner_state, state.rng_key, updates), next_key)

    # Overridden because the inner transform reads its own state.
    def eval_params(self, state: LowBitState, params: Params) -> Params:
        """Return the evaluation parameters of the inner transform.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return self.inner.eval_params(dequantize(state.inner_state), params)

    def check(self) -> None:
        """Check the bits, the block and the size."""
        if self.bits not in (4, 8):
            raise ValueError(f"`LowBit(bits=...)` must be 8 or 4, got {self.bits!r}.")
        if self.block < 2 or self.block & (self.block - 1):
            raise ValueError(f"`LowBit(block=...)` must be a power of two such as 128, got {self.block!r}.")

    def _bits_of(self, x: Any, declared: Any, mask: list[bool] | None, owner: int | None) -> int | None:
        """The bits of an entry of an array with this declaration; None if it stays as it is."""
        is_wanted = mask is None or (owner is not None and mask[owner])
        # `quantized` takes arrays of at least two entries.
        is_large = x.size >= max(self.min_size, 2)
        if not (is_wanted and is_large and jnp.issubdtype(x.dtype, jnp.floating)) or declared.get("exact", False):
            return None
        if declared.get("preconditioner", False):
            return 8 if self.preconditioners else None
        return self.bits


def _divided_like(state: State, updates: Updates) -> State:
    """Divide moments over explicit axes of a mesh as the updates are, where the codes could not be divided so."""
    arrays = jtu.tree_leaves(updates)
    if not any(any(jax.typeof(x).sharding.spec) for x in arrays):
        return state
    leaves, treedef = jtu.tree_flatten(state)
    places = owners(state, updates, of_same_shape=True)
    return treedef.unflatten(
        [x if i is None else typed_like(x, arrays[i]) for x, i in zip(leaves, places, strict=True)]
    )


def _quantized_like(tree: PyTree, like: PyTree, words: Array | None, params: PyTree) -> PyTree:
    """Store the arrays of a tree in the form that they have in another tree; the inverse of `dequantize`.

    Args:
        tree: a state.
        like: a tree of the same structure, with quantized arrays in the place of some.
        words: raw data of a random key for stochastic rounding; None rounds to the nearest value.
        params: the parameters: the arrays of one of them are quantized together.
    """
    forms, treedef = jtu.tree_flatten(like, is_leaf=is_quantized)
    leaves = treedef.flatten_up_to(tree)
    at = [i for i, x in enumerate(forms) if is_quantized(x)]
    # Keys of JAX's generator, one for each array, would take longer to compile than all the rest.
    seeds = {} if words is None else {i: jnp.stack([words[0] + np.uint32(n), words[-1]]) for n, i in enumerate(at)}
    owned = owners(tree, params, of_same_shape=True)
    groups: dict[Any, list[int]] = collections.defaultdict(list)
    for i in at:
        form: Any = forms[i]
        layout = form.codes.shape, form.scales.shape, form.bits
        groups[("alone", i) if owned[i] is None else (owned[i], layout)].append(i)

    def column(group: list[int]) -> tuple[Any, ...]:
        return [forms[i] for i in group], [leaves[i] for i in group], [seeds[i] for i in group] if seeds else None

    found = map_leaves(lambda _, *column: quantize_together(*column), (), list(map(column, groups.values())))
    for group, new in zip(groups.values(), found, strict=True):
        for i, x in zip(group, new, strict=True):
            leaves[i] = x
    return treedef.unflatten(leaves)

"""Results with the sharding of the arrays that they belong to."""

import itertools

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import sdy
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Shaped

# JAX 0.12 removed `jax.experimental.shard_alike`. In JAX 0.10 it gives all arrays of one shape the same sharding,
# because the lowering is cached, group number included. A parameter that differs at every call avoids the cache.
_shard_like = Primitive("modulax_shard_like")
_calls = itertools.count()


def shard_like(x: Shaped[Array, "*shape"], like: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """Return `x`, which a compiled program shards as it does `like`."""
    return _shard_like.bind(x, like, call=next(_calls))


def _as_it_is(x, like, *, call):
    del like, call
    return x


def _jvp(primals, tangents, *, call):
    return _shard_like.bind(*primals, call=call), tangents[0]


def _batched(operands, axes, *, call):
    (x, like), (of_x, of_like) = operands, axes
    if of_x is None or of_like is None:
        return x, of_x
    return _shard_like.bind(x, jnp.moveaxis(like, of_like, of_x), call=call), of_x


def _lowered(context, x, like, *, call):
    del call
    if getattr(jax.config, "jax_use_shardy_partitioner", True):
        group = next(context.module_context.channel_iterator)  # equal in equal programs, for the compilation cache
        for value in (x, like):
            sdy.sharding_group(value, group)
    return [x]


_shard_like.def_impl(_as_it_is)
_shard_like.def_abstract_eval(_as_it_is)
ad.primitive_jvps[_shard_like] = _jvp
batching.primitive_batchers[_shard_like] = _batched
mlir.register_lowering(_shard_like, _lowered)

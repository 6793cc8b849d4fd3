"""Collectives among groups of devices, inside `jax.shard_map`.

JAX has them (`axis_index_groups`), but not under `jax.vmap`, nor the derivative of a maximum over devices. Here they
are one primitive, which is lowered to those of JAX.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Shaped

Groups = tuple[tuple[int, ...], ...]  # the numbers of devices along the axes

_collective = Primitive("modulax_collective")


def sum_over(x: Shaped[Array, "*shape"], axes: tuple[str, ...], groups: Groups) -> Shaped[Array, "*shape"]:
    """The sum over the devices of each group."""
    return _collective.bind(x, kind="sum", axes=axes, groups=groups, split=0, concat=0)


def max_over(x: Shaped[Array, "*shape"], axes: tuple[str, ...], groups: Groups) -> Shaped[Array, "*shape"]:
    """The maximum over the devices of each group, without a derivative."""
    return _collective.bind(jax.lax.stop_gradient(x), kind="max", axes=axes, groups=groups, split=0, concat=0)


def exchange(x: Shaped[Array, "..."], axes: tuple[str, ...], groups: Groups, split: int, concat: int) -> Any:
    """Cut the array along one axis, send a piece to each device of the group, and join what arrives along another."""
    # XLA for CPU rejects an all-to-all of pieces that differ in layout, which the barrier prevents.
    x = jax.lax.optimization_barrier(x)
    return _collective.bind(x, kind="exchange", axes=axes, groups=groups, split=split, concat=concat)


def _run(x, *, kind, axes, groups, split, concat):
    if kind == "exchange":
        return jax.lax.all_to_all(x, axes, split, concat, axis_index_groups=groups, tiled=True)
    return (jax.lax.psum if kind == "sum" else jax.lax.pmax)(x, axes, axis_index_groups=groups)


def _type(x, *, kind, axes, groups, split, concat):
    shape = list(x.shape)
    shape[split] //= len(groups[0]) if kind == "exchange" else 1
    shape[concat] *= len(groups[0]) if kind == "exchange" else 1
    return x.update(shape=tuple(shape))


def _jvp(primals, tangents, **params):
    (x,), (t,) = primals, tangents
    y = _collective.bind(x, **params)
    is_zero = params["kind"] == "max" or isinstance(t, ad.Zero)
    return y, ad.Zero(jax.typeof(y).to_tangent_aval()) if is_zero else _collective.bind(t, **params)


def _transpose(ct, x, *, split, concat, **params):
    return [ct if isinstance(ct, ad.Zero) else _collective.bind(ct, split=concat, concat=split, **params)]


def _batched(xs, dims, *, split, concat, **params):
    (x,), (d,) = xs, dims
    return _collective.bind(x, split=split + (d <= split), concat=concat + (d <= concat), **params), d


_collective.def_abstract_eval(_type)
ad.primitive_jvps[_collective] = _jvp
ad.primitive_transposes[_collective] = _transpose
batching.primitive_batchers[_collective] = _batched
mlir.register_lowering(_collective, mlir.lower_fun(_run, multiple_results=False))

"""Functions of arrays that are computed in another way on some platforms."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

Function = Callable[..., Array]


def by_platform(
    name: str, default: Function, others: Mapping[str, Function], type_of: Callable[..., Any] = lambda x, *_: x
) -> Function:
    """Return a function that is computed by that of the platform for which a program is compiled.

    It is a primitive, so that a form is traced only for its platform: `jax.lax.platform_dependent` traces all forms,
    which takes 4 % of the instructions to trace and lower SOAP. Its derivatives are those of the default.

    Args:
        name: the name of the primitive.
        default: the function on all other platforms. All arguments begin with the axes of a batch, but for scalars.
        others: the functions on some platforms.
        type_of: a function of the types of the arguments that returns that of the result; by default, the first.
    """
    primitive = Primitive(f"modulax_{name}")

    def batched(operands, axes):
        # One decision for all matrices: under `vmap`, a `cond` computes both branches.
        (size,) = {x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None}

        def moved(x, axis):
            if axis is not None:
                return jnp.moveaxis(x, axis, 0)
            return jnp.broadcast_to(x, (size, *x.shape)) if x.ndim else x

        return primitive.bind(*map(moved, operands, axes)), 0

    primitive.def_abstract_eval(type_of)
    primitive.def_impl(lambda *xs: jax.lax.platform_dependent(*xs, default=default, **others))
    ad.primitive_jvps[primitive] = lambda xs, tangents: jax.jvp(
        default, tuple(xs), tuple(map(ad.instantiate_zeros, tangents))
    )
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(default, multiple_results=False))
    for platform, function in others.items():
        mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False), platform=platform)
    return primitive.bind

"""Functions of one array that are computed in another way on some platforms."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array

Function = Callable[[Array], Array]


def by_platform(name: str, default: Function, others: Mapping[str, Function]) -> Function:
    """Return a function that is computed by that of the platform for which a program is compiled.

    It is a primitive, so that a form is traced only for its platform: `jax.lax.platform_dependent` traces all forms,
    which takes 4 % of the instructions to trace and lower SOAP.

    Args:
        name: the name of the primitive.
        default: the function on all other platforms, whose result has the type of its argument.
        others: the functions on some platforms.
    """
    primitive = Primitive(f"modulax_{name}")

    def batched(operands, axes):
        # One decision for all matrices: under `vmap`, a `cond` computes both branches.
        (x,), (axis,) = operands, axes
        return primitive.bind(jnp.moveaxis(x, axis, 0)), 0

    primitive.def_abstract_eval(lambda x: x)
    primitive.def_impl(lambda x: jax.lax.platform_dependent(x, default=default, **others))
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(default, multiple_results=False))
    for platform, function in others.items():
        mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False), platform=platform)
    return primitive.bind

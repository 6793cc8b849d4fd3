"""Updates of another dtype, and a loss that is not a scalar: what the error says."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx

PARAMS = {"b": jnp.ones(2), "w": jnp.ones(2)}


def test_integer_gradients_are_refused_with_their_dtype():
    optimizer = mx.SGD(0.1)
    state = optimizer.init(PARAMS)
    for u, dtype in ((np.ones(2, np.int32), "int32"), (jnp.ones(2, bool), "bool")):
        for method in (optimizer.step, optimizer.update):
            message = rf"`SGD.{method.__name__}`: at `w` the update has dtype {dtype} and the parameter float32"
            with pytest.raises(ValueError, match=message):
                method({"b": jnp.ones(2), "w": u}, state, PARAMS)
    with pytest.raises(ValueError, match=r"update has dtype float32 and the parameter int32. .*None for the update"):
        optimizer.step(PARAMS, state, {**PARAMS, "w": jnp.ones(2, int)})


def test_integer_leaves_of_a_model_need_no_gradient():
    params = {**PARAMS, "n": jnp.arange(2), "f": jnp.sin}
    zero: Any = np.zeros(2, jax.dtypes.float0)
    optimizer = mx.SGD(0.5)
    for n in (None, zero, jnp.arange(2)):
        new, _ = optimizer.step({**PARAMS, "n": n, "f": None}, optimizer.init(params), params)
        np.testing.assert_array_equal(new["w"], 0.5)
        np.testing.assert_array_equal(new["n"], params["n"])


@pytest.mark.parametrize("name", ["MoMo", "ReduceOnPlateau", "PolyakSGD", "ScaleByZoomLinesearch"])
def test_a_loss_that_is_not_a_scalar(name: str):
    transform = mx.LBFGS() if name == "ScaleByZoomLinesearch" else getattr(mx, name)(*[0.1] * (name == "MoMo"))
    state = jax.eval_shape(transform.init, PARAMS)
    extra: dict[str, Any] = {"grad": PARAMS, "value_fn": lambda p: jnp.sum(p["w"])}
    for value in (jnp.ones(5), np.ones(1)):
        with pytest.raises(ValueError, match=rf"`{name}` needs a scalar `value`, the loss, .* shape \({value.size},\)"):
            jax.eval_shape(lambda s, v=value: transform.update(PARAMS, s, PARAMS, value=v, **extra), state)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [mx.SOAP, mx.EShampoo, mx.Shampoo, mx.Dion], ids=lambda make: make.__name__)
def test_gradients_of_matrices_in_a_wider_dtype_than_the_parameters(make: Any):
    params = {"w": jnp.ones((2, 3), jnp.float32), "b": jnp.ones(2, jnp.float32)}
    state = make().init(params)
    updates, new = make().update(jax.tree.map(lambda x: x.astype(jnp.float64), params), state, params)
    assert all(u.dtype == jnp.float64 for u in jax.tree.leaves(updates))
    chex.assert_trees_all_equal_dtypes(new, state)

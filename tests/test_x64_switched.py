"""JAX's precision is switched within one process: nothing that is remembered belongs to the other precision."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

PARAMS = {"w": np.asarray([[0.3, -1.7], [2.1, 0.9]]), "b": np.asarray([0.1, -0.4])}
# The same transform in both precisions: numbers, schedules, counters, line searches, norms, containers.
TRANSFORMS: dict[str, Callable[[], Any]] = {
    "AdamW": lambda: mx.AdamW(0.1, b2=0.99),
    "SGD-schedule": lambda: mx.SGD(schedules.CosineDecay(0.1, 10), momentum=0.9),
    "Chain": lambda: mx.Chain(mx.ClipByGlobalNorm(0.7), mx.ScaleByBelief(), mx.Scale(-0.1)),
    "DoG": mx.DoG,
    "Muon": lambda: mx.Muon(0.1, adam_learning_rate=0.1),
    "Injected": lambda: mx.Injected(mx.Lion(0.1)),
    "MultiSteps": lambda: mx.MultiSteps(mx.RMSProp(0.1), 2),
    "Lookahead": lambda: mx.Lookahead(mx.Adam(0.1), 2, 0.3),
}


def run(transform: Any) -> Any:
    """Three steps, in the precision of now, and the state after them."""
    params = jtu.tree_map(lambda p: jnp.asarray(p, float), PARAMS)
    state, out = transform.init(params), []
    for t in range(3):
        grads = jtu.tree_map(lambda p, t=t: (1 + t) * p, params)
        updates, state = transform.update(grads, state, params)
        params = mx.apply_updates(params, updates)
        out.append(updates)
    return out, state


def floats(tree: Any) -> set[Any]:
    return {x.dtype for x in jtu.tree_leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)}


@pytest.mark.parametrize("is_first_x64", [False, True], ids=["float32 first", "float64 first"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_one_transform_in_both_precisions(name: str, is_first_x64: bool):
    """Made in the first, used in the first, in the second, and in the first again."""
    found = []
    with jax.enable_x64(is_first_x64):
        transform = TRANSFORMS[name]()
    for is_x64 in (is_first_x64, not is_first_x64, is_first_x64):
        with jax.enable_x64(is_x64):
            found.append(run(transform))
            assert floats(found[-1]) == {np.dtype(np.float64 if is_x64 else np.float32)}
    first, other, again = found
    jax.tree.map(np.testing.assert_array_equal, again, first)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), other, first)


def test_numbers_made_in_double_precision_are_used_in_it():
    """After the same numbers were used in float32, and after others were made with the ids of those that are gone."""
    with jax.enable_x64(True):
        transform = mx.ScaleByAdam(b1=0.9, b2=0.999)
    g = np.asarray([0.25, -3.0])
    for _ in range(2):
        transform.update(jnp.asarray(g, jnp.float32), transform.init(jnp.asarray(g, jnp.float32)))
        with jax.enable_x64(True):
            _, state = transform.update(jnp.asarray(g), transform.init(jnp.asarray(g)))
            np.testing.assert_allclose(state.mu, (1 - 0.9) * g, rtol=1e-15)
            np.testing.assert_allclose(state.nu, (1 - 0.999) * g**2, rtol=1e-12)


def test_dtypes_that_were_put_together_in_one_precision():
    """float64 is float32 without x64, and is not remembered as that."""
    for is_x64 in (False, True, False):
        with jax.enable_x64(is_x64):
            wide = mx.tree.norm({"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, float)})
            assert wide.dtype == (np.float64 if is_x64 else np.float32)
            assert mx.tree.dtype({"a": jnp.ones(2, jnp.float32), "b": jnp.ones(2, float)}, "promote") == wide.dtype

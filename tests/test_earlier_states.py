"""States that earlier code wrote are read, and the next step is the one of that code."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from modulax import checkpoint

from .oracles.freeze_states import OPTIMIZERS, PARAMS, frozen, gradients


def test_states_of_the_optimizers_of_matrices_from_before_they_had_one_base():
    params = jtu.tree_map(jnp.asarray, PARAMS)
    optimizers = {name: make() for name, make in OPTIMIZERS.items()}
    saved, given = frozen(), dict[str, Any]()
    for name, optimizer in optimizers.items():
        own = {key: x for key, x in saved[name].items() if not key.startswith("next.")}
        given[name], report = checkpoint.load_state_dict({"params": params, "state": optimizer.init(params)}, own)
        assert not [*report.fresh, *report.unused, *report.remarks], f"{name}: {report}"
    last = gradients()[-1]
    found = jax.jit(
        lambda given: {
            name: o.update(last, given[name]["state"], given[name]["params"]) for name, o in optimizers.items()
        }
    )(given)
    assert saved.keys() == found.keys()
    for name, result in found.items():
        after = checkpoint.state_dict({"next": result})
        for key, x in after.items():
            want, x = (np.asarray(y).astype(np.float64) for y in (saved[name][key], x))
            tolerance = 1e-5 * np.abs(want).max(initial=0)
            np.testing.assert_allclose(x, want, rtol=0, atol=tolerance, err_msg=f"{name}, {key}")
        assert {key for key in saved[name] if key.startswith("next.")} == after.keys(), name

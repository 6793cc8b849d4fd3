"""Freeze the states of the optimizers of matrices at commit 6a8cbc0f, and the step after them, in `states.npz`.

    PYTHONPATH=CHECKOUT/src python tests/oracles/freeze_states.py

The checkout is that of the commit. All arrays of `checkpoint.state_dict` are in one array of bytes, and their names,
shapes and dtypes in one text, which takes a tenth of the space.
"""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

import modulax as mx
from modulax import checkpoint

FILE = Path(__file__).parent / "states.npz"
STEPS = 3
PARAMS = {"b": np.ones(2, np.float32), "w": np.arange(6, dtype=np.float32).reshape(3, 2)}
OPTIMIZERS: dict[str, Any] = {
    "SOAP": lambda: mx.SOAP(precondition_frequency=2),
    "EShampoo": lambda: mx.EShampoo(precondition_frequency=2, start=1, block_size=2),
    "Shampoo": lambda: mx.Shampoo(b2=0.9, precondition_frequency=2, block_size=2),
    "KLShampoo": lambda: mx.KLShampoo(b2=0.9, eps=1e-3, grafting=mx.ScaleByAdam()),
    "Kron": lambda: mx.Kron(max_size_triangular=2),
    "Muon": lambda: mx.Muon(0.01, mu_dtype="bfloat16"),
    "NorMuon": lambda: mx.NorMuon(),
    "AdaMuon": lambda: mx.AdaMuon(),
    "MARSM": lambda: mx.MARSM(),
    "MARSShampoo": lambda: mx.MARSShampoo(),
    "Dion": lambda: mx.Dion(rank=1),
    "Scion": lambda: mx.Scion(),
    "GaLore": lambda: mx.GaLore(0.01, 1, 2),
    "Apollo": lambda: mx.Apollo(0.01, 1, 2),
}


def gradients() -> list[Any]:
    """Return those of some steps, and of the next one."""
    rng = np.random.default_rng(0)
    return [jtu.tree_map(lambda p: rng.normal(size=p.shape).astype(p.dtype), PARAMS) for _ in range(STEPS + 1)]


def trained(optimizer: Any) -> Any:
    """Return the parameters and the state after some steps, and the next update with the state after it."""
    params, state = jtu.tree_map(jnp.asarray, PARAMS), optimizer.init(PARAMS)
    *grads, last = gradients()
    for g in grads:
        params, state = optimizer.step(g, state, params)
    return {"params": params, "state": state, "next": optimizer.update(last, state, params)}


def stored(tree: Any) -> tuple[list[Any], bytes]:
    """Return the names, shapes and dtypes of the arrays of a tree, and their bytes."""
    arrays = checkpoint.state_dict(tree)
    names = [(name, np.shape(x), str(x.dtype)) for name, x in arrays.items()]
    return names, b"".join(np.asarray(x).tobytes() for x in arrays.values())


def frozen() -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays of each optimizer by their names."""
    with np.load(FILE) as file:
        names, data, at, out = json.loads(str(file["names"])), file["data"].tobytes(), 0, {}
    for optimizer, rows in names.items():
        out[optimizer] = {}
        for name, shape, dtype in rows:
            x = np.frombuffer(data, jnp.dtype(dtype), int(np.prod(shape)), at).reshape(shape)
            out[optimizer][name], at = x, at + x.nbytes
    return out


if __name__ == "__main__":
    rows = {name: stored(trained(make())) for name, make in OPTIMIZERS.items()}
    data = np.frombuffer(b"".join(data for _, data in rows.values()), np.uint8)
    np.savez_compressed(FILE, names=np.array(json.dumps({name: found for name, (found, _) in rows.items()})), data=data)

"""What a version says that is too old for a part of the package; `nox -s floors` installs such versions."""

import subprocess
import sys


def test_a_flax_that_is_too_old():
    """Then Equinox and Linen train, and an NNX model is answered with what to install."""
    program = """
from flax import nnx
import modulax as mx
vars(nnx).pop("as_pure", None)
model, optimizer = nnx.Linear(1, 1, rngs=nnx.Rngs(0)), mx.SGD(0.1)
for use in (lambda: mx.roles(model), lambda: mx.nnx.Optimizer(model, optimizer), lambda: mx.nnx.labels(model, {})):
    try:
        use()
    except ImportError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    (message,) = {*run.stdout.splitlines()}
    assert "needs flax 0.12.8 or newer" in message
    assert 'pip install --upgrade "modulax[nnx]"' in message

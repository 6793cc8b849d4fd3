"""Programs of other libraries that take optax optimizers, and tools that log sweeps: `nox -s libraries` installs them.

pytest doesn't descend into this folder on its own (`norecursedirs` in pyproject.toml), so that the other sessions do
without them. `pytest tests/libraries` runs it.
"""

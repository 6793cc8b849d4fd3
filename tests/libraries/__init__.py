"""Libraries that take optax optimizers, tools that log sweeps and engines that run them: for `nox -s libraries`.

pytest doesn't descend into this folder on its own (`norecursedirs` in pyproject.toml), so that the other sessions do
without them. `pytest tests/libraries` runs it.
"""

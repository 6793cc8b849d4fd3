"""The versions and the devices that a bug report needs."""

import collections
import importlib.metadata
import platform

import jax

PACKAGES = ("modulax", "jax", "jaxlib", "equinox", "jaxtyping", "optree", "numpy", "flax", "orbax-checkpoint", "optax")


def show_versions() -> None:
    """Print the versions of modulax, Python and the libraries that modulax works with, and JAX's devices.

    Paste the output into a bug report:

        modulax.show_versions()

    Optional libraries are not imported; one that is missing is printed as "not installed". The call starts JAX's
    backend, as `jax.devices()` does.
    """
    rows = {name: _version(name) for name in PACKAGES}
    rows |= {"Python": platform.python_version(), "platform": platform.platform()}
    rows |= {"devices": _devices(), "jax_enable_x64": str(jax.config.read("jax_enable_x64"))}
    width = max(map(len, rows))
    print("\n".join(f"{name:<{width}}  {text}" for name, text in rows.items()))  # noqa: T201, printing is its purpose


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    try:
        kinds = collections.Counter(device.device_kind for device in jax.devices())
        return f"{', '.join(f'{n} × {kind}' for kind, n in kinds.items())} ({jax.default_backend()})"
    except RuntimeError as error:  # a backend that doesn't start may be what the report is about
        return f"none: {error}"

"""No program is kept: those for devices that are not there can be written to the cache of JAX, and not be read."""

import jax

jax.config.update("jax_enable_compilation_cache", False)

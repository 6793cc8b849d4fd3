"""optax's own tests with `modulax.compat` in the place of optax."""

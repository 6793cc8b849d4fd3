"""Small programs of the kinds that people train with optax, each run with optax and with modulax.

A program takes an optimizer and is otherwise the same for both libraries. Data are synthetic, sizes are tiny, and the
results (losses, parameters) agree to rounding. Programs that need other libraries are in `tests/libraries`.
"""

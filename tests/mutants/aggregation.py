"""Faults in aggregators and in what is built on them."""

from ._mutant import Mutant

AGGREGATE = ("tests/test_aggregate.py",)

MUTANTS = (
    Mutant(
        "accumulation-is-ready-one-late",
        "bounds",
        "aggregate/_aggregators.py",
        "return _Now(n, n >= self.accumulation_steps)",
        "return _Now(n, n > self.accumulation_steps)",
        AGGREGATE,
    ),
    Mutant(
        "chans-term-is-forgotten",
        "aggregate",
        "aggregate/_statistics.py",
        "s_new = s.astype(squares.dtype) + squares + abs_sq(delta) * (size * (n - 1) / n)",
        "s_new = s.astype(squares.dtype) + squares",
        AGGREGATE,
    ),
    Mutant(
        "the-variance-of-a-population",
        "aggregate",
        "aggregate/_statistics.py",
        "jnp.asarray(sample_size).astype(default_float()) - 1, 1)",
        "jnp.asarray(sample_size).astype(default_float()), 1)",
        AGGREGATE,
    ),
    Mutant(
        "a-decay-of-the-first-step-rules",
        "aggregate",
        "aggregate/_statistics.py",
        "ema_decay=jnp.asarray(self.ema_decay).astype(state.ema_decay.dtype)",
        "ema_decay=state.ema_decay",
        AGGREGATE,
    ),
    Mutant(
        "the-aggregator-gets-no-extra",
        "extra",
        "aggregate/_process.py",
        "aggregated, aux, held = self.aggregator.aggregate(updates, state.aggregate_state, params, **extra)",
        "aggregated, aux, held = self.aggregator.aggregate(updates, state.aggregate_state, params)",
        AGGREGATE,
    ),
    Mutant(
        "a-parameter-called-ready-is-a-flag",
        "aggregate",
        "aggregate/_process.py",
        'return getattr(x, "shape", None) == () and jnp.issubdtype(x.dtype, jnp.bool_)',
        'return getattr(x, "shape", None) == ()',
        AGGREGATE,
    ),
)

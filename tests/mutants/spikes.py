"""Faults in what skips and clips spikes: the statistics of past values, and when they count."""

from ._mutant import Mutant

SPIKES, RELEASED = ("tests/test_spikes.py",), ("tests/test_released_code.py -k 'spikes or departures'",)
SKIPPING, CLIPPING = "_containers/spikes.py", "_transforms/running_norm.py"


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = SPIKES) -> Mutant:
    return Mutant(name, "spikes", file, old, new, tests)


MUTANTS = (
    _mutant("a-spike-before-the-window-is-full", SKIPPING, "least = self.window if", "least = 2 if"),
    _mutant(
        "not-a-number-is-no-spike",
        SKIPPING,
        "jnp.array([x <= thresholds[name] for name, x in measured.items()]).all()",
        "jnp.logical_not(jnp.array([x > thresholds[name] for name, x in measured.items()]).any())",
    ),
    _mutant(
        "not-a-number-stays-in-the-window",
        SKIPPING,
        "jnp.where(is_finite, pushed(x, measured[name]), x)",
        "pushed(x, measured[name])",
    ),
    _mutant("a-spike-stays-out-of-the-window", SKIPPING, "jnp.where(is_finite, pushed", "jnp.where(is_taken, pushed"),
    _mutant("the-deviation-of-a-whole-population", SKIPPING, "/ (n - 1)", "/ n"),
    _mutant(
        "what-is-absent-counts-as-zero",
        SKIPPING,
        "jnp.where(present(window, count), (x - mean) ** 2, 0)",
        "(x - mean) ** 2",
    ),
    _mutant("rounding-is-a-spike", SKIPPING, "_SMALLEST_DEVIATION * jnp.abs(mean)", "0"),
    _mutant(
        "one-of-two-spikes-is-enough-to-step",
        SKIPPING,
        "for name, x in measured.items()]).all()",
        "for name, x in measured.items()]).any()",
    ),
    _mutant(
        "skips-in-a-row-never-end",
        SKIPPING,
        "jnp.where(is_taken, 0, safe",
        "jnp.where(is_taken, state.consecutive_skips, safe",
    ),
    _mutant(
        "squares-of-losses-overflow",
        SKIPPING,
        "largest = jnp.where(largest > 0, largest, 1)",
        "largest = jnp.ones_like(largest)",
    ),
    _mutant(
        "outliers-enter-the-mean",
        CLIPPING,
        "moment(self.decay, state.mean, x)",
        "moment(self.decay, state.mean, total)",
        RELEASED,
    ),
    _mutant("the-variance-is-around-the-old-mean", CLIPPING, "(x - mean) ** 2", "(x - state.mean) ** 2", RELEASED),
    _mutant(
        "outliers-are-reduced-to-the-threshold",
        CLIPPING,
        "self.z_threshold**2 * inverse_z",
        "self.z_threshold",
        RELEASED,
    ),
    _mutant(
        "norms-that-overflow-are-recorded", CLIPPING, "recorded, jnp.isfinite(total))", "recorded, total == total)"
    ),
    _mutant(
        "the-percentile-is-that-below",
        CLIPPING,
        "bound = low + (place - below.astype(total.dtype)) * (high - low)",
        "bound = low",
    ),
    _mutant(
        "this-norm-is-not-in-the-window",
        CLIPPING,
        "ordered = jnp.sort(jnp.where(present(window, seen), window",
        "ordered = jnp.sort(jnp.where(present(window, seen), state.window",
    ),
    _mutant("clipped-steps-are-not-counted", CLIPPING, "is_clipped = total > bound", "is_clipped = total < bound"),
    _mutant(
        "update-clipping-by-the-first-moment",
        "_transforms/stable_adam.py",
        "block_rms(ratio(g,",
        "block_rms(ratio(mu,",
        RELEASED,
    ),
    _mutant(
        "update-clipping-overflows",
        "_transforms/stable_adam.py",
        "block_rms(ratio(g, jnp.maximum(root, self.eps)))",
        "safe_sqrt(jnp.mean(abs_sq(g) / jnp.maximum(root**2, self.eps**2)))",
    ),
)

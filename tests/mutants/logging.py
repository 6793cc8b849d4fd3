"""Faults in what logs read: `metrics(state)`, its names, and what the classes declare for it."""

from ._mutant import Mutant

METRICS = ("tests/test_metrics.py",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = METRICS) -> Mutant:
    return Mutant(name, "logging", file, old, new, tests)


MUTANTS = (
    _mutant(
        "metrics-leave-out-what-follows-a-schedule",
        "_protocol/metrics.py",
        '(is_schedule(x) or name == "learning_rate")',
        'name == "learning_rate"',
    ),
    _mutant("metrics-hold-arrays", "_protocol/metrics.py", "if jnp.ndim(leaf) == 0:", "if True:"),
    _mutant(
        "metrics-lose-the-layer",
        "_protocol/metrics.py",
        '".".join(key_names(inside)) or field.name',
        "key_names(inside)[-1] if inside else field.name",
    ),
    _mutant(
        "metrics-with-the-keys-that-all-have",
        "_protocol/metrics.py",
        "short = [names[common:] for names in keys]",
        "short = keys",
    ),
    _mutant(
        "metrics-of-one-name-replace-each-other",
        "_protocol/metrics.py",
        "if len(named) < len(metrics):",
        "if False:",
    ),
)

"""Faults in the vocabulary of optax: names, arguments, defaults, pairs of functions, states."""

from ._mutant import Mutant

_TESTS = ("tests/test_compat_functions.py", "tests/test_compat.py")


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "compat", f"{file}.py", old, new, _TESTS)


MUTANTS = (
    _mutant("compat-follows-the-paper", "compat/_rule", 'fixed = {"follow": "optax"} if', "fixed = {} if"),
    _mutant("compat-takes-everything-by-position", "compat/_rule", "is_positional = False", "is_positional = True"),
    _mutant("compat-forgets-a-mask", "compat/_own", '"lars": Changed(_DECAY_MASK, ', '"lars": Changed({}, '),
    _mutant("compat-has-names-of-its-own", "compat/_own", "if name not in NAMES[module] and", "if False and"),
    _mutant("compat-ignores-optimism", "compat/_functions", "learning_rate if optimism is None else optimism", "1.0"),
    _mutant("compat-adadelta-has-a-sign", "compat/_functions", "    if learning_rate is None:  # n", "    if 0:  # n"),
    _mutant("compat-takes-key-and-seed", "compat/_functions", "        if key is not None:\n", "        if False:\n"),
    _mutant(
        "compat-states-in-our-order",
        "_support/optax_states",
        "    ScaleByAdamState: count mu nu",
        "    ScaleByAdamState: mu nu count",
    ),
    _mutant("compat-states-take-too-many", "compat/_states", "if len(args) > len(names):", "if False:"),
    _mutant(
        "compat-pairs-are-compiled",
        "_support/tracing",
        "    if _state.inside and not _state.is_plain:",
        "    if False:",
    ),
    _mutant("plain-programs-convert-numbers", "_protocol/program", "trees, keeps_numbers=True)", "trees)"),
    _mutant("compat-injects-arguments", "compat/_functions", "    if not _constructs(inner_factory):", "    if True:"),
    _mutant(
        "an-optimizer-unpacks-backwards",
        "_protocol/transform",
        "iter((self.init, self.update))",
        "iter((self.update, self.init))",
    ),
    _mutant("compat-finds-plain-pairs-extra", "compat/_pairs", "not (cls.takes_extra and is_plain_pair)", "True"),
    _mutant("compat-names-no-module", "compat/_rule", 'f"modulax.compat.{module}"', 'f"modulax.{module}"'),
    _mutant(
        "compat-calls-warn-of-nothing", "compat/_own", " if name in DEPRECATED_CALLS else found", " if 0 else found"
    ),
    _mutant("compat-constructs-half-a-state", "compat/_states", "names[x] not in fields]", "False]"),
    _mutant("compat-finds-the-last-of-several", "compat/_trees", "    if len(found) > 1:", "    if False:"),
    _mutant(
        "compat-sets-what-is-not-there",
        "compat/_trees",
        "key, filtering):\n            raise",
        "key):\n            raise",
    ),
    _mutant("compat-sets-no-schedules", "compat/_trees", "_STEP), _STEP.name, node.step)", "_STEP), None, node.step)"),
    _mutant("compat-sets-halves-of-counts", "compat/_trees", "and not is_whole:", "and False:"),
    _mutant("compat-divides-in-single", "compat/_trees", "all(isinstance(x, (np.ndarray", "all(isinstance(x, (str"),
    _mutant("compat-ascends-from-zero", "compat/_schedules", "and peak_value == 0 and", "and False and"),
    _mutant("compat-decays-to-zero", "compat/_schedules", 'value < 0 and largest == "0"', "value <= 0"),
    _mutant("compat-takes-any-probabilities", "compat/_functions", "if is_checked and not", "if False and not"),
)

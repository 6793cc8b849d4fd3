"""Faults in what saves users a few lines: arithmetic on schedules, masks by pattern and by class, names, pairs."""

from ._mutant import Mutant

ARITHMETIC = "tests/test_schedule_arithmetic.py"
FUNCTIONS = "tests/test_from_functions.py"
PATTERNS = "tests/test_patterns.py"

MUTANTS = (
    # --- arithmetic on schedules
    Mutant(
        "a-number-minus-a-schedule-is-the-schedule-minus-the-number",
        "schedule arithmetic",
        "_protocol/schedule.py",
        'return _expression("-", other, self)',
        'return _expression("-", self, other)',
        (f"{ARITHMETIC} -k values",),
    ),
    Mutant(
        "an-expression-prints-without-the-parentheses-on-its-right",
        "schedule arithmetic",
        "_protocol/schedule.py",
        "operand(self.right, own + 1)",
        "operand(self.right, own)",
        (f"{ARITHMETIC} -k prints",),
    ),
    Mutant(
        "numpy-numbers-take-a-schedule-for-an-object-array",
        "schedule arithmetic",
        "_protocol/schedule.py",
        "    __array_ufunc__: ClassVar[None] = None  # NumPy numbers leave `number * schedule` to the schedule\n",
        "",
        (ARITHMETIC,),
    ),
    # --- masks by pattern and by class
    Mutant(
        "a-pattern-with-a-slash-is-compared-with-the-dotted-path",
        "pattern",
        "_protocol/patterns.py",
        'if "/" not in pattern:',
        'if "/" in pattern:',
        (f"{PATTERNS} -k test_labels",),
    ),
    Mutant(
        "a-regular-expression-is-searched",
        "pattern",
        "_protocol/patterns.py",
        "pattern.fullmatch(path)",
        "pattern.search(path)",
        (f"{PATTERNS} -k nothing",),
    ),
    Mutant(
        "the-flags-of-an-expression-are-lost",
        "pattern",
        "_protocol/patterns.py",
        "return re.compile(pattern)",
        'return re.compile(getattr(pattern, "pattern", pattern))',
        (f"{PATTERNS} -k test_labels",),
    ),
    Mutant(
        "brackets-in-a-path-are-not-literal",
        "pattern",
        "_protocol/patterns.py",
        "path == pattern or matches",
        "matches",
        (f"{PATTERNS} -k test_labels",),
    ),
    Mutant(
        "the-field-of-an-outer-module-alone-counts",
        "pattern",
        "_protocol/patterns.py",
        "for n in range(len(path) + 1)",
        "for n in range(2)",
        (f"{PATTERNS} -k class",),
    ),
    Mutant(
        "a-field-that-is-none-is-unknown",
        "pattern",
        "_protocol/patterns.py",
        "used.update([i] if field is None or hasattr(node, field) else [])",
        "used.update([i] if field is None else [])",
        (f"{PATTERNS} -k class",),
    ),
    Mutant(
        "rules-with-other-defaults-are-one-program",
        "pattern",
        "_protocol/patterns.py",
        ", typed(self.default)",
        "",
        (f"{PATTERNS} -k value",),
    ),
    # --- names
    Mutant(
        "renamed-transforms-are-not-found",
        "registry",
        "_catalog/registry.py",
        'known.get(plain(there or ""))',
        'known.get("")',
        ("tests/test_registry.py -k names_and_by",),
    ),
    Mutant(
        "a-name-with-its-module-is-not-found",
        "registry",
        "_catalog/registry.py",
        'name.rpartition(".")[2]',
        "name",
        ("tests/test_registry.py -k names_and_by",),
    ),
    # --- pairs of functions
    Mutant(
        "a-pair-gets-no-argument-that-it-names",
        "pair of functions",
        "_containers/optax_adapters.py",
        "for p in parameters[3:] if p.name in extra}",
        "for p in parameters[4:] if p.name in extra}",
        (f"{FUNCTIONS} -k extra",),
    ),
    Mutant(
        "the-state-of-a-pair-is-that-of-the-caller",
        "pair of functions",
        "_containers/optax_adapters.py",
        "return FromFunctionsState(_copied(call_user(self.init_function, params)))",
        "return FromFunctionsState(call_user(self.init_function, params))",
        (FUNCTIONS,),
    ),
    Mutant(
        "the-dtype-that-a-pair-returns-is-that-of-the-update",
        "pair of functions",
        "_containers/optax_adapters.py",
        "new = jtu.tree_map(_in_dtype_of, result[0], updates)\n        return new,",
        "return result[0],",
        (f"{FUNCTIONS} -k dtypes",),
    ),
    # --- costs of -inf
    Mutant(
        "a-cost-of-minus-infinity-is-the-lowest",
        "assignment",
        "assignment/_hungarian.py",
        "return jnp.where(is_finite, costs, jnp.full_like(costs, jnp.inf))",
        "return jnp.where(jnp.isnan(costs), jnp.full_like(costs, jnp.inf), jnp.maximum(costs, -1e6))",
        ("tests/test_assignment.py -k mistakes",),
    ),
    # --- errors
    Mutant(
        "an-integer-gradient-is-missing",
        "refusal",
        "_protocol/transform.py",
        '        refuse_integers(params, grads, f"{cls.__name__}.step")\n',
        "",
        ("tests/test_dtypes_of_updates.py -k integer_gradients",),
    ),
    Mutant(
        "integer-parameters-have-no-derivative-of-their-own",
        "refusal",
        "tree/_align.py",
        "elif is_integer(p) and is_inexact_array(u):",
        "elif is_integer(p):",
        ("tests/test_dtypes_of_updates.py -k need_no",),
    ),
    Mutant(
        "a-loss-of-one-number-is-a-scalar",
        "refusal",
        "_support/checks.py",
        '(shape := np.shape(extra["value"]))',
        '(shape := np.shape(extra["value"])) not in ((), (1,))',
        ("tests/test_dtypes_of_updates.py -k loss",),
    ),
    Mutant(
        "labels-of-one-name-are-two-groups",
        "refusal",
        "_containers/partition.py",
        "if names.setdefault(str(label), label) is not label:",
        "if names.setdefault(str(label), label) is label and False:",
        ("tests/test_containers.py -k comparable",),
    ),
    Mutant(
        "a-sign-counts-for-the-first-term",
        "refusal",
        "_catalog/describe.py",
        'return f"({text})" if " + " in text or " - " in text else text',
        "return text",
        ("tests/test_describe.py -k parentheses",),
    ),
)

"""Faults in `Stacked`: what is grouped, rows in another order, stacks that are computed row by row."""

from ._mutant import Mutant

TESTS = ("tests/test_stacked.py",)


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "stacked", file, old, new, TESTS)


CONTAINER, STACKS, LEAFMAP = "_containers/stacked.py", "tree/_stacks.py", "tree/_leafmap.py"
MUTANTS = (
    _mutant("large-arrays-are-stacked", CONTAINER, "0 < p.size <= self.max_size", "0 < p.size"),
    _mutant(
        "labels-are-not-asked",
        CONTAINER,
        "kinds.setdefault((jax.typeof(p), label)",
        "kinds.setdefault((jax.typeof(p), 0)",
    ),
    _mutant(
        "rows-are-stacked-at-every-step",
        STACKS,
        "return _joined(list(rows)) if found is None else found",
        "return _joined(list(rows))",
    ),
    _mutant(
        "the-rest-is-another-stack",
        CONTAINER,
        "size = max(2, len(members) // -(-len(members) // self.chunk))",
        "size = self.chunk",
    ),
    _mutant("a-chunk-of-one-is-stacked", CONTAINER, "if self.chunk == 1:", "if self.chunk == 0:"),
    _mutant("the-axis-of-a-batch-is-taken-apart", CONTAINER, "axis = x.ndim - stack.ndim - 1", "axis = 0"),
    _mutant(
        "evaluation-reads-stacks",
        CONTAINER,
        "eval_params(state.unstacked().inner_state",
        "eval_params(state.inner_state",
    ),
    _mutant(
        "sharding-in-a-stack-is-not-checked",
        "_catalog/sharding.py",
        "if other is not None:\n                raise",
        "if other == ():\n                raise",
    ),
    _mutant("a-rule-with-a-state-is-computed-on-rows", LEAFMAP, "needs_more and not has_state and", "needs_more and"),
    _mutant("any-rule-is-cheap", LEAFMAP, "not has_state and operations.are_cheap:", "not has_state:"),
    _mutant("arrays-that-nobody-reads-are-stacked", LEAFMAP, "id(v) in read for v", "True for v"),
    _mutant("decay-reads-stacks", LEAFMAP, "if needs_more and not", "if False and not"),
    _mutant(
        "the-decay-follows-a-rounding",
        "_protocol/leafwise.py",
        "return at_least_float32(x.dtype) == x.dtype",
        "return True",
    ),
)

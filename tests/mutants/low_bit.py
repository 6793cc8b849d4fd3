"""Faults in `LowBit`: codes, which arrays are quantized, rounding, checkpoints, sharding."""

from ._mutant import Mutant

TESTS = ("tests/test_low_bit.py",)


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "low bit", file, old, new, TESTS)


CODES, CONTAINER = "numerics/_quantized.py", "_containers/low_bit.py"
MUTANTS = (
    _mutant("codes-are-cut-off", CODES, "codes = jnp.round(root)", "codes = jnp.floor(root)"),
    _mutant("a-second-moment-is-squared", CODES, "return (c * c) * (c * c)", "return c * c"),
    _mutant("a-second-moment-can-be-zero", CODES, "c = (code + 1) * (0.5**bits)", "c = code / (2**bits - 1)"),
    _mutant(
        "halves-of-a-byte-are-swapped", CODES, "jnp.where(half == 0, codes << 28", "jnp.where(half == 1, codes << 28"
    ),
    _mutant("stochastic-codes-are-below", CODES, "+ _draws(seeds, root.shape))", ")"),
    _mutant("draws-repeat-along-an-axis", CODES, "place = place * np.uint32(shape[axis]) + jax", "place = jax"),
    _mutant("the-largest-code-overflows", CODES, "codes = jnp.minimum(codes, most)", "codes = 1 * codes"),
    _mutant("exact-fields-are-quantized", CONTAINER, 'not declared.get("exact", False)', "True"),
    _mutant("where-is-not-asked", CONTAINER, "is_wanted and is_large", "is_large"),
    _mutant("small-arrays-are-quantized", CONTAINER, "x.size >= max(self.min_size, 2)", "x.size >= 2"),
    _mutant("four-bits-are-not-stochastic", CONTAINER, "return self.bits == 4 if", "return False if"),
    _mutant("the-key-stays-the-same", CONTAINER, "else next_keys(state.rng_key, 0)[0]", "else state.rng_key"),
    _mutant(
        "averages-are-quantized",
        "_containers/schedule_free.py",
        "x: PyTree = like_params(exact=True)",
        "x: PyTree = like_params()",
    ),
    _mutant(
        "a-restored-moment-is-the-least-similar",
        "checkpoint/_low_bit.py",
        "max(fitting)",
        "min(fitting)",
    ),
    _mutant(
        "scales-are-replicated",
        "_catalog/sharding.py",
        "if n == 0 or len(shape) < n or",
        "if n == 0 or len(shape) <= n or",
    ),
)

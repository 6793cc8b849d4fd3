"""Faults in `LowBit`: codes, which arrays are quantized, rounding, checkpoints, sharding."""

from ._mutant import Mutant

TESTS = ("tests/test_low_bit.py",)


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "low bit", file, old, new, TESTS)


CODES, CONTAINER = "numerics/_quantized.py", "_containers/low_bit.py"
MUTANTS = (
    _mutant(
        "codes-are-cut-off",
        CODES,
        "rounded = root * _most(bits) + _ROUND",
        "rounded = jnp.floor(root * _most(bits)) + _ROUND",
    ),
    _mutant("a-second-moment-is-squared", CODES, "return (c * c) * (c * c)", "return c * c"),
    _mutant("a-second-moment-can-be-zero", CODES, "c = (code + 1) * (0.5**bits)", "c = code / (2**bits - 1)"),
    _mutant(
        "halves-of-a-byte-are-swapped",
        CODES,
        "pairs[..., 1, :, :] << 4 | pairs[..., 0, :, :] & 15",
        "pairs[..., 0, :, :] << 4 | pairs[..., 1, :, :] & 15",
    ),
    _mutant("stochastic-codes-are-below", CODES, "jnp.where(is_above, _ROUND, _ROUND - 1)", "(_ROUND - 1)"),
    _mutant("the-square-is-rounded-in-the-root", CODES, "jnp.maximum(w * w + (", "jnp.maximum(0 * w + ("),
    _mutant(
        "a-stochastic-zero-is-the-largest",
        CODES,
        "jnp.floor(jnp.maximum(jnp.sqrt(jnp.sqrt(ratio)) * 2.0**bits, 1))",
        "jnp.floor(jnp.sqrt(jnp.sqrt(ratio)) * 2.0**bits)",
    ),
    _mutant("draws-repeat-along-an-axis", CODES, "place = place * np.uint32(shape[axis]) + (", "place = ("),
    _mutant("entries-of-a-byte-share-a-draw", CODES, "<< (half << np.uint32(4))", "<< (half << np.uint32(0))"),
    _mutant("an-exact-entry-is-moved", CODES, "np.uint32(0x3F800100)", "np.uint32(0x3F800000)"),
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
        "_support/placement.py",
        "if n == 0 or len(shape) < n or",
        "if n == 0 or len(shape) <= n or",
    ),
    _mutant("codes-in-four-bits-are-replicated", "_support/placement.py", "(*of[:-2], of[-2] // 2) if", "of[:-1] if"),
)

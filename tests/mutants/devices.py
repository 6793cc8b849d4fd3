"""Faults in sharded and offloaded states: what is divided, where results are, and which memory holds the state."""

from ._mutant import Mutant

WHERE = ("tests/test_many_devices.py -k where_an_array",)
EVERY_WAY = ("tests/test_many_devices.py -k every_way",)
OFFLOAD = ("tests/test_many_devices.py -k 'offload or eighth and Offload'",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, "devices", f"{file}.py", old, new, tests)


MUTANTS = (
    _mutant("zero-divides-the-first-dimension", "_catalog/sharding", "lengths[i], not spec[i]", "-i", WHERE),
    _mutant("zero-divides-a-dimension-again", "_catalog/sharding", "lengths[i], not spec[i]", "lengths[i]", WHERE),
    _mutant("zero-forgets-the-axis-of-the-parameter", "_catalog/sharding", "] += new", "] = new", WHERE),
    _mutant("zero-uses-an-axis-twice", "_catalog/sharding", "all(name not in part for part in spec)", "True", WHERE),
    _mutant("zero-divides-what-it-cannot", "_catalog/sharding", "n > 0 and n % pieces == 0", "n > 0", WHERE),
    _mutant(
        "zero-leaves-factors-whole",
        "_catalog/sharding",
        "(is_explicit and not is_like_its_parameter)",
        "not is_like_its_parameter",
        ("tests/test_many_devices.py -k fsdp",),
    ),
    _mutant(
        "zero-divides-factors-on-explicit-axes",
        "_catalog/sharding",
        "(is_explicit and not is_like_its_parameter)",
        "False",
        ("tests/test_many_devices.py -k explicit",),
    ),
    _mutant(
        "an-offloaded-state-is-sharded-on-the-device",
        "_catalog/sharding",
        "aval.memory_space == jax.memory.Space.Host",
        "False",
        ("tests/test_many_devices.py -k 'eighth and Offload'",),
    ),
    _mutant(
        "step-lets-the-state-move",
        "_protocol/transform",
        "return placed_like(new, state), with_arrays",
        "return new, with_arrays",
        ("tests/test_many_devices.py -k 'eighth and SM3'",),
    ),
    _mutant(
        "applied-updates-move-the-parameters",
        "_protocol/apply_updates",
        "moved = placed_like([_add(leaves[i], u) for i, u in pairs], [leaves[i] for i, _ in pairs])",
        "moved = [_add(leaves[i], u) for i, u in pairs]",
        EVERY_WAY,
    ),
    _mutant("outside-of-a-program-nothing-is-moved", "_support/placement", "jax.device_put(x, wanted)", "x", EVERY_WAY),
    _mutant(
        "explicit-types-are-not-kept",
        "_support/placement",
        "x if found == wanted or wanted.mesh.empty else jax.sharding.reshard(x, wanted)",
        "x",
        ("tests/test_many_devices.py -k explicit",),
    ),
    _mutant(
        "an-offloaded-state-stays-on-the-device",
        "_containers/offload",
        "OffloadState(_moved(inner_state, self.memory_kind))",
        "OffloadState(inner_state)",
        OFFLOAD,
    ),
    _mutant(
        "an-average-stays-in-the-memory-of-the-host",
        "_containers/offload",
        'OffloadState(_moved(state.inner_state, "device")), params)',
        "state, params)",
        OFFLOAD,
    ),
    _mutant(
        "an-offloaded-state-is-made-on-the-first-device",
        "_containers/offload",
        "x if i is None else shard_like(x, given[i])",
        "x",
        ("tests/test_contract.py -k 'sharding and Offload'",),
    ),
    _mutant(
        "nnx-divides-nothing",
        "nnx/_optimizer",
        "out_shardings=state_sharding(optimizer, params, zero=zero)",
        "out_shardings=state_sharding(optimizer, params)",
        ("tests/test_many_devices.py -k nnx",),
    ),
    _mutant(
        "nnx-moves-moments-to-their-parameters",
        "nnx/_optimizer",
        'own = own | {"out_sharding": tuple(x.sharding.spec)}',
        "pass",
        ("tests/test_many_devices.py -k nnx",),
    ),
)

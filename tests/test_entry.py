"""Entry points: what `init`, `update` and `step` owe to whoever calls them."""

import collections
import gc
import sys
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax
from modulax._protocol import entry
from modulax._protocol.program import Program, memory

from .instances import FIRSTS, Instance

# Untyped, because its annotation loses the signature of what it decorates.
ONCE: Any = chex.assert_max_traces(n=1)
PARAMS = {"kernel": jnp.asarray([[1.0, -2.0], [0.5, 3.0]]), "bias": jnp.asarray([0.3, -0.2])}


def params():
    return {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}


def test_the_bound_methods_hash_by_the_identity_of_their_optimizer():
    a, b = modulax.AdamW(1e-3), modulax.AdamW(1e-3)
    assert hash(a.update) == hash(a.update)
    assert a.update == a.update
    assert a.update != b.update
    assert a.update != a.init


def test_a_call_in_a_program_of_the_caller_is_a_part_of_it():
    """No program of its own is made, and what is traced doesn't depend on what the process did before."""

    class Own(modulax.Scale):
        pass

    def trace() -> str:
        return str(jax.make_jaxpr(Own(2.0).update)(params(), modulax.EmptyState()))

    made = vars(Own.update)["boundary"].program.direct.cache_info
    first = trace()
    assert not made().currsize
    out, _ = Own(2.0).update(params(), modulax.EmptyState())
    assert out["b"][0] == 2.0
    assert made().currsize
    assert trace() == trace() == first


def test_positional_and_keyword_params_share_one_program():
    class Once(modulax.AbstractStatelessTransform):
        @ONCE
        def apply(self, updates, params, **extra):
            return updates

    transform = Once()
    transform.update(params(), transform.init(params()), params())
    transform.update(params(), transform.init(params()), params=params())
    transform.update(updates=params(), state=transform.init(params()), params=params())


def test_a_number_among_the_extra_arguments_is_traced_and_a_function_is_static():
    traces = []

    class Weighted(modulax.AbstractStatelessTransform):
        def apply(self, updates, params, *, value, function, **extra):
            traces.append(value)
            with jax.numpy_dtype_promotion("standard"):
                return jax.tree.map(lambda g: function(g) * value, updates)

    transform = Weighted()
    state = transform.init(params())
    for value in (1.0, 2.0, 3.0):
        out, _ = transform.update(params(), state, value=value, function=jnp.square)
        np.testing.assert_allclose(out["b"], value)
    assert len(traces) == 1
    transform.update(params(), state, value=1.0, function=jnp.abs)
    assert len(traces) == 2
    for value in (2, 3, 2j, 3j, True, np.float32(2.0)):  # integers stay integers, and a flag is part of the program
        out, _ = transform.update(params(), state, value=value, function=jnp.abs)
        np.testing.assert_allclose(out["b"], value)
    assert [x if isinstance(x, bool) else x.dtype for x in traces[2:]] == [jnp.int32, jnp.complex64, True]


def test_the_compiled_program_names_the_transforms():
    optimizer = modulax.Chain(modulax.ClipByGlobalNorm(1.0), modulax.AdamW(1e-3))
    state = optimizer.init(params())
    lowered = jax.jit(lambda o, g, s, p: o.update(g, s, p)).lower(optimizer, params(), state, params())
    text = str(lowered.compile().as_text())
    for name in ("ClipByGlobalNorm", "AdamW/Chain/ScaleByAdam", "AddDecayedWeights", "ScaleByLearningRate"):
        assert f"/{name}/" in text, name


def test_a_caller_s_program_has_the_equations_and_no_call():
    """A call with every leaf as an argument is a quarter of what there is to trace and lower."""
    optimizer = modulax.Chain(modulax.Stateless(lambda u, p: u))
    traced = jax.jit(lambda g, s: optimizer.update(g, s)).trace(params(), optimizer.init(params()))
    assert not traced.jaxpr.eqns


def test_the_only_leaf_of_a_shape_is_no_call():
    """A call costs time to trace, lower and compile; leaves of one shape share one, so that they are traced once."""
    tree = {"a": jnp.ones(2), "b": jnp.ones(2), "c": jnp.ones(3)}
    traced = jax.jit(lambda g: modulax.Scale(0.5).update(g, modulax.EmptyState())[0]).trace(tree)
    assert [str(e.primitive) for e in traced.jaxpr.eqns].count("jit") == 2


def test_the_donated_step_can_be_called_and_compiled_ahead_of_time(key):
    """For a model and for shapes; a function among the extra arguments is part of the program."""
    optimizer = modulax.Chain(modulax.LAMB(1e-2), modulax.ScaleByBacktrackingLinesearch(2))
    model = eqx.nn.MLP(2, 2, 3, 1, key=key)
    grads, state = eqx.filter(model, eqx.is_array), optimizer.init(model)
    extra: Any = {"value": jnp.ones(()), "grad": grads, "value_fn": lambda model: jnp.sum(model.layers[0].bias)}
    expected = optimizer.step(grads, state, model, **extra)
    step = optimizer.jit_step()
    shapes = eqx.filter_eval_shape(lambda *args: args, grads, state, model)
    compiled: Any = step.lower(*shapes, **extra).compile()
    copies = jax.tree.map(jnp.copy, grads)
    aot = compiled(grads=grads, state=jax.tree.map(jnp.copy, state), params=copies, **extra | {"value_fn": None})
    called = step(grads, state, model, **extra)
    assert eqx.tree_equal(called, expected, rtol=1e-6)
    assert eqx.tree_equal(eqx.combine(aot[0], model), called[0], rtol=1e-6)
    assert compiled.memory_analysis().alias_size_in_bytes >= 3 * sum(x.nbytes for x in jax.tree.leaves(grads))
    assert copies.layers[0].bias.is_deleted()
    assert jax.tree.leaves(state)[0].is_deleted()


def test_donation_leaves_the_numbers_of_the_optimizer_alone():
    inner = modulax.AdamW(jnp.asarray(1e-3))
    optimizer = modulax.Injected(inner)
    p = params()
    state = optimizer.init(p)
    for _ in range(3):
        p, state = optimizer.step(params(), state, p, donate=True)
    assert float(inner.learning_rate) == pytest.approx(1e-3)


def test_an_array_that_is_given_twice_can_be_donated():
    """Tied weights, gradients that are the parameters, and a pair whose halves are one array."""
    optimizer, x = modulax.SGD(0.5), jnp.ones(3)
    tied, _ = optimizer.step({"a": x + 1, "b": x}, optimizer.init({"a": x, "b": x}), {"a": x, "b": x}, donate=True)
    np.testing.assert_array_equal(tied["a"], 0)
    np.testing.assert_array_equal(tied["b"], 0.5)
    y = jnp.ones(3)
    np.testing.assert_array_equal(optimizer.step(y, optimizer.init(y), y, donate=True)[0], 0.5)
    lookahead, y = modulax.Lookahead(optimizer, 2, 0.5), jnp.ones(3)
    pair = modulax.LookaheadParams(y, y)
    new, _ = lookahead.step(jnp.ones(3), lookahead.init(pair), pair, donate=True)
    np.testing.assert_array_equal(new.fast, 0.5)


@pytest.mark.parametrize("donate", [False, True])
def test_step_adds_in_the_wider_dtype(donate):
    """An update in float32 moves a bfloat16 parameter by the rounded sum, not by the rounded update."""
    p, u = jnp.ones(1, jnp.bfloat16), jnp.asarray([2.0**-8 + 2.0**-17])  # just above the middle of two numbers
    expected = (p.astype(jnp.float32) + u).astype(jnp.bfloat16)
    assert expected != p + u.astype(jnp.bfloat16)
    assert modulax.apply_updates(p, u) == expected
    new, _ = modulax.Identity().step(u, modulax.Identity().init(p), p + 0, donate=donate)
    assert new == expected


def test_a_number_on_the_device_is_remembered_only_while_it_cannot_change():
    # Writeable: a user's own array, at an address that JAX does not share but copies from.
    raw = np.full(3, 0.5, np.float32)[1:2].reshape(())
    optimizer = eqx.tree_at(lambda o: o.step_size, modulax.Scale(1.0), raw)
    state = optimizer.init(params())
    first, _ = optimizer.update(params(), state)
    raw[...] = 2.0
    second, _ = optimizer.update(params(), state)
    np.testing.assert_allclose(second["b"], 4 * first["b"])


def test_the_numbers_of_optimizers_that_are_gone_are_not_mistaken_for_others():
    """Python gives the address of a number that is gone to the next one."""
    state = modulax.Scale(1.0).init(params())
    for factor in range(50):
        updates, _ = modulax.Scale(factor).update(params(), state)
        np.testing.assert_array_equal(updates["b"], factor * params()["b"])


def calls_of(function: Any) -> dict[str, int]:
    """How often each function of modulax, and those that Equinox generates for its classes, run within a call."""
    found = collections.Counter[str]()

    def seen(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and ("modulax/_" in frame.f_code.co_filename or "generated" in frame.f_code.co_filename):
            found[frame.f_code.co_qualname] += 1

    function()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def test_a_step_makes_few_calls_of_python():
    """What an eager step costs beside its program; it does not depend on the number of leaves."""
    optimizer = modulax.AdamW(1e-3)
    for size in (1, 5):
        tree = {str(i): jnp.ones(2) for i in range(size)}
        state = optimizer.init(tree)
        update, step, read = (
            calls_of(f)
            for f in (
                lambda tree=tree, state=state: optimizer.update(tree, state, tree),
                lambda tree=tree, state=state: optimizer.step(tree, state, tree),
                lambda state=state: optimizer.hyperparameters(state),
            )
        )
        # The Modules in the state, and not those of the optimizer.
        assert update["flatten"] == update["unflatten"] == 3
        assert sum(update.values()) <= 10, update
        assert sum(step.values()) <= 11, step
        assert sum(read.values()) <= 110, read
    chain = modulax.Chain(modulax.Scale(1.0), optimizer)
    state = chain.init(tree)
    in_a_chain = calls_of(lambda: chain.update(tree, state, tree))
    assert in_a_chain["Program._general"] == 0
    assert sum(in_a_chain.values()) <= sum(update.values()) + 12, in_a_chain


def test_numbers_and_flags_in_place_of_arrays():
    """After calls with arrays. An array is traced, a flag static, and a number in a model no leaf."""
    seen = []

    class Weighted(modulax.AbstractStatelessTransform):
        def apply(self, updates, params, *, value, **extra):
            seen.append(value)
            return updates

    transform, state = Weighted(), modulax.EmptyState()
    one = jnp.ones(())
    for value in (jnp.asarray(True), True, False, one, one, 4.0, np.float32(2.0), np.float32(3.0), 4.0, one):
        transform.update(params(), state, value=value)
    assert [x if isinstance(x, bool) else (x.dtype, x.weak_type) for x in seen] == [
        (bool, False),
        True,
        False,
        (np.float32, False),
    ]
    for _ in range(3):  # whether an array is weakly typed is kept, and traced once
        transform.update(params(), state, value=jnp.full((), 2.0))
    assert [x.weak_type for x in seen[4:]] == [True]

    optimizer, model = modulax.SGD(0.5), params() | {"rate": np.float32(1.0)}
    state = optimizer.init(model)
    for _ in range(2):
        optimizer.step(model, state, model)
    with pytest.raises(ValueError, match="rate") as raised:
        optimizer.step(model, state, model | {"rate": 1.0})
    assert raised.value.__context__ is None


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_a_transform_that_changes_is_taken_apart_again(kind: Any):
    """A dict in a field may hold other numbers at the next call."""

    class Table(modulax.AbstractStatelessTransform):
        factors: Any

        def apply(self, updates, params, **extra):
            return jax.tree.map(lambda g: sum(self.factors.values()) * g, updates)

    factors = kind(a=jnp.asarray(2.0))
    transform = Table(factors)
    state = transform.init(params())
    for name, value in (("b", 0.0), ("a", 3.0), ("b", 4.0)):
        transform.update(params(), state)
        np.testing.assert_allclose(transform.update(params(), state)[0]["b"], sum(factors.values()))
        factors[name] = jnp.asarray(value)
    np.testing.assert_allclose(transform.update(params(), state)[0]["b"], 7.0)


def test_a_transform_that_is_gone_is_forgotten():
    gc.collect()
    before = len(memory.known)
    for factor in range(3):
        transform = modulax.Scale(factor)
        transform.update(params(), modulax.EmptyState())
        assert len(memory.known) == before + 1
        del transform
        gc.collect()
        assert len(memory.known) == before


def test_only_so_many_programs_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Program, "most_compiled", 2)

    class Own(modulax.Scale):
        pass

    kept = vars(Own.update)["boundary"].program.keyed.cache_info
    for size in (1, 2, 3, 4):  # a string is static: a program of its own
        out, _ = Own(2.0).update([jnp.ones(2)] * size, modulax.EmptyState(), name=str(size))
        np.testing.assert_array_equal(out, [[2.0, 2.0]] * size)
        assert kept().currsize == min(size, 2)


def test_eager_updates_are_applied_by_one_program(monkeypatch: pytest.MonkeyPatch):
    """Which other leaves are not part of; layers on devices of their own cannot be in one."""
    names, add = [], jax.lax.add
    monkeypatch.setattr(jax.lax, "add", lambda x, y: names.append(x) or add(x, y))
    p = {"w": jnp.ones(2), "b": jnp.ones(3), "n": np.arange(2), "f": jnp.tanh, "kept": jnp.ones(1)}
    u = {"w": jnp.ones(2), "b": jnp.ones(3), "n": None, "f": None, "kept": None}
    modulax.apply_updates(p, u)
    new = modulax.apply_updates(p, u)
    assert len(names) == 2  # traced once
    np.testing.assert_array_equal(new["b"], 2)
    assert all(new[name] is p[name] for name in ("n", "f", "kept"))
    one, two = jax.devices()[:2]
    apart = {"w": jax.device_put(p["w"], one), "b": jax.device_put(p["b"], two)}
    assert [x.devices() for x in jax.tree.leaves(modulax.apply_updates(apart, apart))] == [{two}, {one}]


def test_a_static_leaf_of_a_transform_is_refused_with_the_remedy():
    class Bad(modulax.AbstractStatelessTransform):
        function: object

        def apply(self, updates, params, **extra):
            return updates

    with pytest.raises(ValueError, match=r"`Bad\(function=...\)` holds .*static=True"):
        Bad(jnp.sin)


@pytest.mark.parametrize("instance", FIRSTS, ids=str)
def test_a_state_for_many_leaves_is_made_without_a_program(instance: Instance, monkeypatch: pytest.MonkeyPatch):
    """Such a program would take XLA minutes. The state is of the same kind, and shares no array with the parameters."""
    transform = instance.make()
    expected = jax.eval_shape(transform.init, PARAMS)
    monkeypatch.setattr(entry, "_MANY", 0)
    found = transform.init(PARAMS)
    chex.assert_trees_all_equal_shapes_and_dtypes(found, expected)
    arrays, others = jax.tree.leaves(found), jax.tree.leaves((PARAMS, transform))
    assert len({id(x) for x in [*arrays, *others]}) == len(arrays) + len({id(x) for x in others})
    assert all(isinstance(x, jax.Array) and not x.aval.weak_type for x in arrays)


def test_the_states_of_many_leaves_of_one_shape_are_in_their_places():
    """They are computed in groups, in a program of the caller too."""
    many = {f"{i:03d}": jnp.full(3 if i % 7 == 0 else 2, float(i)) for i in range(90)}
    transform = modulax.ScaleByDoG(("heuristic", 1e-6))
    for init in (transform.init, jax.jit(transform.init)):
        chex.assert_trees_all_equal(init(many).init_params, many)


def test_init_compiles_as_many_programs_as_there_are_shapes(monkeypatch: pytest.MonkeyPatch):
    """A program with an output for every leaf takes XLA quadratic time."""
    monkeypatch.setattr(entry, "_MANY", 60)
    lowered: list[str] = []

    def seen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            lowered.append(str(kwargs))

    optimizer = modulax.AdamW(1e-3)
    optimizer.init([jax.device_put(np.ones(5, np.float32)) for _ in range(63)])  # what JAX compiles for any scalar
    counts = []
    jax.monitoring.register_event_duration_secs_listener(seen)
    try:
        for size in (63, 127, 127):
            before = len(lowered)
            optimizer.init([jax.device_put(np.ones(11 + i % 2, np.float32)) for i in range(size)])
            counts.append(len(lowered) - before)
    finally:
        jax.monitoring.unregister_event_duration_listener(seen)
    assert counts == [2, 0, 0], lowered  # a group of each shape


def test_numpy_arrays_of_strings_objects_and_dates_are_left_alone():
    """They are data of the model, like functions, and not arrays for JAX."""
    data = {
        "names": np.array(["a"]),
        "name": np.str_("a"),
        "object": np.array([None]),
        "day": np.array("2020", "M8[D]"),
    }
    model = {**data, "w": jnp.ones(2), "n": np.arange(3)}
    optimizer = modulax.SGD(0.5)
    new, _ = optimizer.step({"w": jnp.ones(2)} | dict.fromkeys(data | {"n": None}), optimizer.init(model), model)
    assert all(new[name] is x for name, x in data.items())
    np.testing.assert_array_equal(new["w"], 0.5)
    np.testing.assert_array_equal(new["n"], [0, 1, 2])


def test_a_state_made_without_a_program_shares_no_array(monkeypatch: pytest.MonkeyPatch):
    """Its buffers can be donated together with the parameters."""

    class SharingState(modulax.AbstractState):
        one: Any
        other: Any
        params: Any

    class Sharing(modulax.AbstractTransform):
        def init(self, params):
            zero = jnp.zeros(2)
            return SharingState(zero, zero, params)

        def update(self, updates, state, params=None, **extra):
            return updates, state

    monkeypatch.setattr(entry, "_MANY", 0)
    arrays = jax.tree.leaves((Sharing().init(PARAMS), PARAMS))
    assert len(set(map(id, arrays))) == len(arrays) == 6

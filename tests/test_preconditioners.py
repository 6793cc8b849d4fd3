"""Laws of the optimizers that precondition both sides of a matrix: SOAP, EShampoo, Shampoo, KL-Shampoo and Kron."""

from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax._transforms import matrix_step, spread

ROTATED = {
    "SOAP": mx.SOAP(0.05, precondition_frequency=2),
    "EShampoo": mx.EShampoo(0.05, b2=0.95, eps=0.1, start=1, precondition_frequency=2),
    "Shampoo": mx.Shampoo(0.1, b2=0.95, eps=1e-3),
    "KLShampoo": mx.KLShampoo(0.1, b2=0.95, eps=0.1),
}
STEPS, SHAPE = 6, (5, 4)


def orthogonal(n: int) -> Any:
    return np.linalg.qr(np.random.default_rng(n).normal(size=(n, n)))[0].astype(np.float32)


def trajectory(optimizer: Any, left: Any, right: Any) -> Any:
    """The points, turned back, of a problem whose parameters are turned."""
    rng = np.random.default_rng(0)
    start, curvature = (rng.uniform(0.5, 2.0, SHAPE).astype(np.float32) for _ in range(2))
    noise = rng.normal(size=(STEPS, *SHAPE)).astype(np.float32)

    def body(carry: Any, noise: Any) -> Any:
        w, state = carry
        g = left @ (curvature * (left.T @ w @ right) + noise) @ right.T
        w, state = optimizer.step(g, state, w)
        return (w, state), left.T @ w @ right

    w = jnp.asarray(left @ start @ right.T)
    return jax.lax.scan(body, (w, optimizer.init(w)), noise)[1]


def test_rotated_parameters_have_a_rotated_trajectory():
    """In float32; not Kron, whose triangular factors depend on the basis."""
    sides = [(np.eye(5, dtype=np.float32), np.eye(4, dtype=np.float32)), (orthogonal(5), orthogonal(4))]
    points = jax.jit(lambda: {n: [trajectory(o, *pair) for pair in sides] for n, o in ROTATED.items()})()
    for name, (plain, turned) in points.items():
        np.testing.assert_allclose(turned, plain, atol=1e-5 * np.abs(plain).max(), rtol=0, err_msg=name)


BLOCKS = {
    "EShampoo": mx.ScaleByEShampoo(eps=1e-3, precondition_frequency=2, start=3, block_size=3),
    "Kron": mx.ScaleByKron(precond_init_scale=3.0, block_size=3),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_trained_like_matrices_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch):
    """Also those that are filled up with zeros, whose second moment begins before there are bases."""
    rule = BLOCKS[name]

    def drawn(rule: Any, now: Any, state: Any, gs: Any, states: Any) -> Any:
        del rule, state
        return now._replace(is_balanced=jnp.zeros((), bool)), [jnp.cos(50 * x) for (*_, x) in gs], states

    # Noise that an entry of a block and of a matrix have in common.
    monkeypatch.setattr(mx.ScaleByKron, "_draw", drawn)
    rows, columns = (slice(0, 3), slice(3, 5)), (slice(0, 3), slice(3, 4))
    grads = np.random.default_rng(0).normal(size=(STEPS, *SHAPE)).astype(np.float32)
    parts = {f"{i}{j}": grads[:, r, c] for i, r in enumerate(rows) for j, c in enumerate(columns)}
    trees = {"whole": grads, **parts}
    start = {name: jnp.zeros_like(g[0]) for name, g in trees.items()}

    def body(state: Any, grads: Any) -> Any:
        updates, state = rule.update(grads, state)
        return state, updates

    _, found = jax.jit(lambda: jax.lax.scan(body, rule.init(start), trees))()
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            # Kron's noise is in proportion to the mean of a block, with what fills it up.
            rtol, atol = (1e-4, 1e-5) if name == "EShampoo" else (5e-3, 2e-3)
            np.testing.assert_allclose(found["whole"][:, r, c], found[f"{i}{j}"], rtol=rtol, atol=atol)


def test_the_update_of_a_block_has_an_rms_without_what_fills_it_up():
    """Steps of long gradients are cut: the last block has one entry, and eight zeros."""
    rule = mx.ScaleByKron(0.0, precond_init_scale=100.0, preconditioner_update_probability=0.0, block_size=3)
    updates, _ = rule.update(g := jnp.full((4, 4), 10.0), rule.init(g))
    np.testing.assert_allclose(updates, 1.1 * jnp.ones_like(g), rtol=1e-6)


def test_each_matrix_in_an_array_is_grafted_on_its_own():
    """Blocks of a long matrix are in the released trajectories; these are layers of a stack, and parts of a vector."""
    rule = mx.ScaleByShampoo(b2=0.9, eps=1e-2, block_size=4, grafting=mx.ScaleByRMS())
    rng = np.random.default_rng(0)
    whole = {"layers": {"w": rng.normal(size=(3, 4, 2)) ** 3}, "v": rng.normal(size=8) ** 3}
    parts = {**{f"w{i}": whole["layers"]["w"][i] for i in range(3)}, "a": whole["v"][:4], "b": whole["v"][4:]}
    found, apart = (rule.update(tree, rule.init(tree))[0] for tree in jax.tree.map(jnp.float32, (whole, parts)))
    np.testing.assert_allclose(found["layers"]["w"], jnp.stack([apart[f"w{i}"] for i in range(3)]), rtol=1e-5)
    np.testing.assert_allclose(found["v"], jnp.concatenate([apart["a"], apart["b"]]), rtol=1e-5)


def test_roots_of_too_few_gradients():
    """Of as many as a vector has entries, or the product of two sides of a block covers the longer one."""
    rare, tree = mx.Shampoo(0.1, precondition_frequency=10), {"b": jnp.zeros(12), "w": jnp.zeros((8, 4))}
    for optimizer, path, start in ((rare, "b", 12), (mx.KLShampoo(0.1, precondition_frequency=2, start=1), "w", 2)):
        few = {path: tree[path]}
        with pytest.warns(UserWarning, match=rf"`{path}` needs.*`grafting=ScaleByAdam\(\)`, or `start={start}`"):
            optimizer.init(few)
        for fine in ({"start": start}, {"grafting": mx.ScaleByAdam()}, {"eps": 1e-3}, {"precondition_frequency": 1}):
            optimizer.replace(**fine).init(few)


def test_rounding_errors_of_a_projection_are_not_divided_by_others():
    """The first update of Adam has entries of at most one, in whatever basis."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(50, 16, 4)), rng.normal(size=(50, 4, 12))
    grads = jnp.asarray(left @ right, jnp.float32)
    rule = mx.ScaleByEShampoo(start=1)
    first = jax.jit(jax.vmap(lambda g: rule.update(g, rule.init(g))[0]))(grads)
    assert np.max(np.linalg.norm(first, axis=(1, 2))) <= 1.01 * np.sqrt(16 * 12)


NARROW = {
    "SOAP": mx.SOAP(0.05, eps=0.1, precondition_frequency=2),
    "EShampoo": mx.EShampoo(0.05, b2=0.95, eps=0.1, start=1, precondition_frequency=2),
    "Shampoo": mx.Shampoo(0.1, b2=0.95, eps=0.1),
    "KLShampoo": mx.KLShampoo(0.1, b2=0.95, eps=0.1),
}


@pytest.mark.usefixtures("x64")
def test_preconditioners_in_another_dtype():
    """The state keeps its dtypes, and so do the parameters, which go about the same way."""
    sides = np.eye(5, dtype=np.float32), np.eye(4, dtype=np.float32)
    tolerances: dict[Any, float] = {None: 0.0, jnp.float64: 1e-5, jnp.bfloat16: 0.05}
    variants = {n: {d: o.replace(preconditioner_dtype=d) for d in tolerances} for n, o in NARROW.items()}
    run = jax.jit(lambda: {n: [trajectory(o, *sides) for o in each.values()] for n, each in variants.items()})
    for name, each in run().items():
        found = dict(zip(tolerances, each, strict=True))
        for dtype, tolerance in tolerances.items():
            assert found[dtype].dtype == jnp.float32
            size = np.abs(found[None]).max()
            np.testing.assert_allclose(
                found[dtype], found[None], atol=tolerance * size, rtol=0, err_msg=f"{name} {dtype}"
            )


def test_kron_whitens_gradients_of_any_size():
    """Its updates have a root mean square of about one in each row, after some hundred steps on noise.

    The factors of zeros stay: in the released code they grow until they overflow.
    """
    kron = mx.ScaleByKron(0.0, precond_lr=0.3)

    def trained(size: Any) -> Any:
        scales = size * jnp.array([1.0, 10.0, 0.1])

        def body(state: Any, key: Any) -> Any:
            noise = jax.random.normal(key, (3, 5))
            updates, state = kron.update({"w": scales[:, None] * noise[:, 1:], "b": scales * noise[:, 0]}, state)
            return state, jnp.concatenate([updates["w"], updates["b"][:, None]], axis=1) ** 2

        start = kron.init({"w": jnp.ones((3, 4)), "b": jnp.ones(3)})
        state, squares = jax.lax.scan(body, start, jax.random.split(jax.random.key(0), 600))
        return state, jnp.mean(squares[300:], axis=0)

    state, squares = jax.jit(jax.vmap(trained))(jnp.array([0.0, 1e-20, 1.0, 1e20]))
    roots = np.sqrt(squares)
    assert np.all((roots[1:] > 0.6) & (roots[1:] < 1.3)), roots
    assert not np.any(roots[0])
    np.testing.assert_array_equal(state.left["w"][0], np.eye(3))
    np.testing.assert_array_equal(state.left["b"][0], np.ones(3))


@pytest.mark.parametrize("n", [60, 61, 109, 209])
def test_a_preconditioner_moves_at_every_nth_step(n: int):
    """Also where the inverse of 1 / n in float32 is more than n."""
    rule = mx.ScaleByKron(preconditioner_update_probability=1 / n)
    state = eqx.tree_at(lambda s: s.update_counter, rule.init(jnp.ones(2)), jnp.asarray(n - 2, jnp.int32))
    counts = []
    for _ in range(2):
        _, state = rule.update(jnp.ones(2), state)
        counts.append(int(state.update_counter))
    assert counts == [n - 1, 0]


def calls_of_lapack(jaxpr: Any, before: int = 0) -> tuple[int, int]:
    """How often a program calls LAPACK, and the most calls that wait for one another, after those before it."""
    waits, number, most = {}, 0, before
    for equation in jaxpr.eqns:
        longest = max([before, *(waits.get(id(x), 0) for x in equation.invars)])
        inside = [getattr(x, "jaxpr", x) for x in jtu.tree_leaves(list(equation.params.values()))]
        found = [calls_of_lapack(x, longest) for x in inside if hasattr(x, "eqns")]
        own = int(equation.primitive.name in ("modulax_inverse_power", "modulax_divided_by_triangle"))
        longest = own + max([longest, *(m for _, m in found)])
        number += own + sum(n for n, _ in found)
        waits |= {id(x): longest for x in equation.outvars}
        most = max(most, longest)
    return number, most


@pytest.mark.parametrize("optimizer", [mx.ScaleByShampoo(), mx.ScaleByKron(min_ndim_triangular=1)], ids=type)
def test_calls_of_lapack_wait_for_one_another(optimizer: Any):
    """XLA for CPU may wait forever for two batches at once, which `vmap` makes of any matrices."""
    params = {"matrix": jnp.ones((3, 4)), "wide": jnp.ones((2, 7)), "vector": jnp.ones(5), "other": jnp.ones(6)}
    program = jax.make_jaxpr(optimizer.update)(params, optimizer.init(params))
    assert calls_of_lapack(program.jaxpr) == (6, 6)


DECOMPOSED, IMPROVED = (spread, "_DECOMPOSED"), (matrix_step, "_RARELY")


@pytest.mark.parametrize(
    "rule, name, bounds",
    [  # fields on which what is decomposed or improved depends
        (mx.ScaleByShampoo(eps=0.1), "b2", [DECOMPOSED]),
        (mx.ScaleByKron(), "precond_lr", [IMPROVED]),
        (mx.ScaleBySOAP(precondition_frequency=2), "b2", [DECOMPOSED, IMPROVED]),
    ],
    ids=["Shampoo", "Kron", "SOAP"],
)
def test_few_matrices_at_a_time(rule: Any, name: str, bounds: Any, monkeypatch: pytest.MonkeyPatch):
    """The last part is filled up, which no derivative sees."""
    random = np.random.default_rng(0)
    shapes = [(2, 4, 3), (4, 3), (4, 3), (4, 3)]
    stack, *others = (np.asarray(random.normal(size=(4, *shape)), np.float32) for shape in shapes)
    grads = {"layers": {"w": stack}, "others": others}

    def updates(value: Any) -> Any:
        def step(state: Any, g: Any) -> Any:
            u, state = rule.replace(**{name: value}).update(g, state)
            return state, u

        return jax.lax.scan(step, rule.init(jtu.tree_map(lambda g: g[0], grads)), grads)[1]

    def found() -> tuple[Any, int]:
        """The updates and their derivatives, and the loops of their program."""
        jax.clear_caches()
        traced = jax.jit(lambda value: jax.jvp(updates, (value,), (1.0,))).trace(0.9)
        return traced.lower().compile()(0.9), str(traced.jaxpr).count("scan[")

    whole, loops = found()
    for module, bound in bounds:
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, 4 * 4 * 4 * 4)  # four matrices, or two with their bases
            parts, more = found()
        assert more > loops
        chex.assert_trees_all_close(whole, parts, rtol=1e-4, atol=1e-6)

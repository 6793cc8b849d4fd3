"""`AbstractMatrixwise`: the rules of docs/write_a_matrix_optimizer.md, on layouts, blocks and the devices of a mesh."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jaxtyping import Array, PyTree

import modulax as mx
from modulax._support.module import with_fields
from modulax._transforms.stages import stages_of
from modulax.testing import LAWS, Case

PAGE = Path(__file__).parents[1] / "docs" / "write_a_matrix_optimizer.md"
FROZEN = np.load(Path(__file__).parent / "oracles" / "examples.npz")
# The table of Aurora's code, from arXiv:2506.10935: coefficients of X and of X X^T X.
CANS = (
    *((5.182503604966906, -5.178098480082684), (2.586120737395915, -0.6479542005271643)),
    *((2.567364126726186, -0.6454968804392178), (2.520560084348265, -0.6393528082067044)),
    *((2.410759275435182, -0.6248683598710716), (2.1883348130094173, -0.5952022073798908)),
    *((1.8595760874873613, -0.5504490972723968), (1.589020160467417, -0.5126569802066718)),
    *((1.5051653981684994, -0.5007377068751799), (1.5, -0.5), (1.5, -0.5), (1.5, -0.5)),
)


@functools.cache
def rules() -> Mapping[str, Any]:
    """The classes that the page defines."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": __name__}
    for block in blocks:
        if "import jax" in block or block.lstrip().startswith(("class", "from typing")):
            exec(block.partition("\ncheck_transform")[0].partition("\nupdates, _")[0], names)
    return names


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", ["tall", "wide", "square"])
@pytest.mark.parametrize(
    "name, options", [("ASGO", {"eps": 0.0}), ("Aurora", {"coefficients": tuple((*x, 0.0) for x in CANS)})]
)
def test_as_in_the_released_code(name: str, options: dict[str, Any], shape: str):
    gradients, wanted = FROZEN[f"gradients/{shape}"], FROZEN[f"{name}/{shape}"]  # outputs x inputs
    optimizer = mx.Chain(rules()[name](**options), mx.ScaleByLearningRate(1.0))
    params = {"layer": {"kernel": jnp.zeros(gradients.shape[:0:-1])}}
    state = optimizer.init(params)
    for g, w in zip(gradients, wanted, strict=True):
        params, state = optimizer.step({"layer": {"kernel": jnp.asarray(g.T)}}, state, params)
        np.testing.assert_allclose(params["layer"]["kernel"].T, w, rtol=0, atol=1e-13)


def rule_of_stacks(rule: type) -> type:
    """The class, whose matrices are on the last two axes."""

    class OfStacks(rule):
        weight_dimension_numbers = mx.by_path({"bias": None, "*": mx.MuonDimensionNumbers(-2, -1)})

    return OfStacks


def test_soap_before_muon_is_the_chain_of_both():
    params = {"layer": {"kernel": jnp.asarray(draw(0, 4, 3), jnp.float32)}}
    rule = rules()["SOAPMuon"]()
    chain = mx.Chain(mx.ScaleBySOAP(), mx.ScaleByMuon(beta=0.0, nesterov=False))
    s, t = rule.init(params), chain.init(params)
    for seed in range(3):
        g = {"layer": {"kernel": jnp.asarray(draw(seed, 4, 3), jnp.float32)}}
        (u, s), (v, t) = rule.update(g, s), chain.update(g, t)
        np.testing.assert_allclose(u["layer"]["kernel"], v["layer"]["kernel"], atol=2e-5)


QUICK = ("structure_shapes_and_dtypes_are_kept", "a_second_step_is_not_traced", "strict_promotion_is_obeyed")
SLOW = ("zeros_are_fine_in_low_precision", "a_partition_gives_each_leaf_its_own", "update_can_be_vmapped")


def test_normalized_muon_is_that_of_the_library():
    params = {"layer": {"kernel": jnp.asarray(draw(0, 4, 3), jnp.float32), "other": jnp.ones((3, 4))}}
    rule, wanted = rules()["Normalized"](), mx.ScaleByNorMuon()
    s, t = rule.init(params), wanted.init(params)
    for seed in range(3):
        g = jtu.tree_map(lambda x: jnp.asarray(draw(seed, *x.shape), jnp.float32), params)  # noqa: B023
        (u, s), (v, t) = rule.update(g, s), wanted.update(g, t)
        for x, y in zip(jtu.tree_leaves((u, s)), jtu.tree_leaves((v, t)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_fields_are_computed_from_the_update_every_few_steps():
    params = {"w": jnp.zeros((4, 3)), "stack": jnp.zeros((2, 3, 4)), "bias": jnp.zeros(3)}
    rule = rule_of_stacks(rules()["LowRank"])(precondition_frequency=2)
    state, mu, basis = rule.init(params), {}, {}
    for seed in range(3):
        grads = {name: draw(seed, *x.shape) for name, x in params.items()}
        updates, state = rule.update(jtu.tree_map(jnp.asarray, grads), state)
        for name in ("w", "stack"):
            if seed % 2 == 0:
                basis[name] = np.linalg.svd(grads[name], full_matrices=False).U[..., :2]
            low = np.swapaxes(basis[name], -1, -2) @ grads[name]
            mu[name] = 0.9 * mu.get(name, 0) + 0.1 * low
            np.testing.assert_allclose(updates[name], basis[name] @ mu[name], atol=1e-12)
        np.testing.assert_array_equal(updates["bias"], grads["bias"])


@pytest.mark.parametrize("name", ["ASGO", "Aurora", "Roots", "LowRank", "Normalized"])
def test_laws(name: str):
    options = {"eps": 1e-2} if name in ("ASGO", "Roots") else {}
    case = Case(rules()[name](**options), {"dense": {"kernel": jnp.asarray(draw(0, 3, 2), jnp.float32)}})
    for law in (*QUICK, *SLOW):
        assert LAWS[law].speaks_of(case)
        LAWS[law].check(case)


# --- What the base class does ---------------------------------------------------------------------------------------


class SeenState(mx.AbstractState):
    largest: PyTree = mx.like_params(per_matrix=True)
    count: Array | None = mx.counter()


class Seen(mx.AbstractMatrixwise[SeenState]):
    """Records the shapes that it gets, and returns $X X^T X$."""

    seen: list[Any] = eqx.field(static=True, default_factory=list)
    block_size: int | None = eqx.field(static=True, default=None)

    def __hash__(self) -> int:
        return id(self)

    def init_matrix(self, x):
        return SeenState(jnp.zeros(x.shape[:-2], x.dtype))

    def update_matrix(self, now, g, s, p):
        self.seen.append((g.shape, g.dtype.name, None if p is None else p.shape))
        u = g @ jnp.matrix_transpose(g) @ g
        return u, SeenState(jnp.maximum(s.largest, jnp.max(jnp.abs(g), axis=(-2, -1))))


def cubed(x: np.ndarray) -> np.ndarray:
    return x @ np.swapaxes(x, -1, -2) @ x


def test_rows_are_inputs_and_columns_are_outputs():
    model = {
        "linear": eqx.nn.Linear(5, 3, key=jax.random.key(0)),
        "conv": eqx.nn.Conv2d(2, 4, 3, key=jax.random.key(1)),
        "stack": eqx.filter_vmap(lambda k: eqx.nn.Linear(5, 3, key=k))(jax.random.split(jax.random.key(2), 7)),
    }
    params, rule = eqx.filter(model, eqx.is_inexact_array), Seen()
    updates, state = rule.update(params, rule.init(params), params)
    assert {shape for shape, _, _ in rule.seen} == {(5, 3), (2 * 9, 4), (7, 5, 3)}
    assert all(p == shape for shape, _, p in rule.seen)
    w = np.asarray(model["linear"].weight)
    np.testing.assert_allclose(updates["linear"].weight, cubed(w.T).T, rtol=1e-5)
    np.testing.assert_array_equal(updates["linear"].bias, params["linear"].bias)
    np.testing.assert_allclose(state.largest["stack"].weight, np.abs(model["stack"].weight).max((1, 2)))
    assert state.largest["linear"].bias is None


def test_blocks_are_matrices_of_their_own():
    x = draw(0, 5, 4).astype(np.float32)
    rule = Seen(block_size=3)
    updates, state = rule.update({"w": jnp.asarray(x)}, rule.init({"w": jnp.asarray(x)}))
    wanted = np.block([[cubed(x[:3, :3]), cubed(x[:3, 3:])], [cubed(x[3:, :3]), cubed(x[3:, 3:])]])
    np.testing.assert_allclose(updates["w"], wanted, rtol=1e-4, atol=1e-5)
    assert state.largest["w"].shape == (2, 2)


def test_arithmetic_is_in_float32_and_results_keep_their_dtypes():
    x = {"w": jnp.asarray(draw(0, 4, 3), jnp.bfloat16)}
    rule = Seen()
    updates, state = rule.update(x, rule.init(x))
    assert rule.seen[0][1] == "float32"
    assert updates["w"].dtype == state.largest["w"].dtype == jnp.bfloat16


def test_matrices_of_one_shape_are_traced_once():
    rule, params = Seen(), {f"layer{i}": jnp.ones((4, 3)) for i in range(20)} | {"other": jnp.ones((3, 4))}
    jax.jit(rule.update).lower(params, rule.init(params))
    assert sorted(shape for shape, _, _ in rule.seen) == [(3, 4), (4, 3)]


def test_a_tree_without_matrices():
    rule, params = Seen(), {"bias": jnp.ones(3)}
    updates, state = rule.update(params, rule.init(params))
    assert updates["bias"] is not None
    assert state.largest == {"bias": None}
    np.testing.assert_array_equal(state.count, 1)


# --- Meshes ---------------------------------------------------------------------------------------------------------

MODEL = {"wide": (2, 4, 16), "tall": (2, 24, 8), "stack": (3, 8, 16), "small": (2, 8, 8), "bias": (16,)}


class OutputsState(mx.AbstractState):
    nu: PyTree
    count: Array | None = mx.counter()


class Outputs(mx.AbstractMatrixwise[OutputsState]):
    """Divides a product by the root of the mean square of each output."""

    def init_matrix(self, x):
        return OutputsState(jnp.zeros_like(x[..., :1, :]))

    def update_matrix(self, now, g, s, p):
        nu = 0.9 * s.nu + jnp.mean(g**2, axis=-2, keepdims=True)
        return g @ jnp.matrix_transpose(g) @ g / jnp.sqrt(nu), OutputsState(nu)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("name", ["ASGO", "Aurora", "Roots", "LowRank", "Normalized", "Outputs", "Seen", "blocks"])
def test_eight_devices_compute_what_one_does(name: str, kind: AxisType):
    own = {"Seen": Seen, "Outputs": Outputs, "blocks": functools.partial(Seen, block_size=8)}
    rule = own.get(name) or rules()[name]
    options = {"eps": 1e-3} if name in ("ASGO", "Roots") else {}
    rule = rule_of_stacks(rule.func if name == "blocks" else rule)  # the first axis of three is that of layers
    transform = rule(**({"block_size": 8} if name == "blocks" else {}), **options)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind), devices=jax.devices("cpu")[:8])
    specs = {"wide": P(None, None, ("a", "b")), "tall": P(None, ("a", "b")), "bias": P()}
    places = {name: NamedSharding(mesh, specs.get(name, P(None, None, ("a", "b")))) for name in MODEL}

    def two_steps(grads: list[Any]) -> tuple[Any, Any, str]:
        state = transform.init(grads[0])
        step = jax.jit(transform.update).lower(grads[0], state).compile()
        _, state = step(grads[0], state)
        return *step(grads[1], state), str(step.as_text())

    grads = [{name: draw(seed, *shape) for name, shape in MODEL.items()} for seed in range(2)]
    wanted = two_steps([jtu.tree_map(jnp.asarray, g) for g in grads])
    found = two_steps([jax.device_put(g, places) for g in grads])
    for x, y in zip(jtu.tree_leaves(found[:2]), jtu.tree_leaves(wanted[:2]), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10)
    # On explicit axes, the types of the factors say that each device has them.
    # A single row is that of a mean over the rows.
    gathered = [x for x in re.findall(r"f64\[([\d,]*)\]\S* all-gather\(", found[2]) if "1" not in x.split(",")]
    assert kind == AxisType.Explicit or not gathered, name


def on_a_grid(tree: Any) -> Any:
    """The arrays on eight devices along two axes, of which each has all."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices("cpu")[:8])
    return jax.device_put(tree, NamedSharding(mesh, P()))


class Whole(Seen):
    """Divides whole matrices by their norms, and adds their means."""

    scale: float = mx.number(2.0)

    def map_whole(self, x):
        return self.scale * x / jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + jnp.mean(x, (-2, -1), keepdims=True)

    def update_matrix(self, now, g, s, p):
        return g, s


@pytest.mark.usefixtures("x64")
def test_devices_get_no_zeros_for_matrices_that_they_do_not_divide():
    """Neither rows and columns of them, with which a mean is another one, nor matrices, whose norm is no divisor."""

    def total(scale: Any, grads: Any) -> Any:
        transform = Whole(scale=scale)
        updates, _ = transform.update(grads, transform.init(grads))
        return sum(jnp.sum(u**3) for u in jtu.tree_leaves(updates)), updates

    run = jax.jit(jax.value_and_grad(total, has_aux=True))
    grads = {"tall": draw(0, 5, 3), "wide": draw(1, 3, 5), "other": draw(2, 8, 6), "another": draw(3, 8, 6)}
    wanted, found = run(2.0, grads), run(2.0, on_a_grid(grads))
    for x, y in zip(jtu.tree_leaves(found), jtu.tree_leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10)


class Printed(Seen):
    def update_matrix(self, now, g, s, p):
        product = g @ jnp.matrix_transpose(g)
        jax.debug.callback(self.seen.append, product)
        jax.debug.callback(lambda: self.seen.append(None))
        return product @ g, s


def test_what_a_rule_prints_is_printed_on_a_mesh():
    rule, x = Printed(), draw(0, 4, 3).astype(np.float32)
    grads = on_a_grid({"a": x, "b": 2 * x})
    updates, _ = rule.update(grads, rule.init(grads))
    np.testing.assert_allclose(updates["b"], 8 * cubed(x), rtol=1e-4)
    jax.effects_barrier()
    seen = [each for each in rule.seen if each is not None]
    assert len(seen) < len(rule.seen)
    np.testing.assert_allclose(sorted(map(np.trace, seen)), np.sum(x**2) * np.array([1, 4]), rtol=1e-4)


def test_an_array_without_entries_on_a_mesh():
    params = on_a_grid({"empty": {"kernel": jnp.zeros((4, 0))}, "w": {"kernel": jnp.ones((4, 3))}})
    updates, _ = mx.ScaleByShampoo().update(params, mx.ScaleByShampoo().init(params))
    assert updates["empty"]["kernel"].shape == (4, 0)


def test_what_travels_is_what_products_read_and_return():
    rule = mx.ScaleBySOAP().replace(normalize_grads=True)
    of = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    arrays = {"g": of((3, 2)), "mu": of((3, 2)), "nu": of((3, 2))}
    squares = {"left": of((3, 3)), "right": of((2, 2)), "left_basis": of((3, 3)), "right_basis": of((2, 2))}

    def step(shared: Any, arrays: dict[str, Array], squares: dict[str, Array]) -> Any:
        rule, now = shared
        s = with_fields(rule.init_matrix(jnp.ones((3, 2))), **arrays | squares)
        return rule.update_matrix(now, arrays["g"], s, None)

    shared = jtu.tree_map(jnp.asarray, rule), (jnp.ones(()), jnp.zeros((), bool))
    staged = stages_of(step, shared, arrays, squares)
    names = {id(v): name for v, name in zip(staged.arguments, [*sorted(arrays), *sorted(squares)], strict=True)}
    first, second = staged.stages[1::2]
    assert {names.get(id(v)) for v in first.given} == {"g", "left_basis", "right_basis"}
    assert sorted(v.aval.shape for v in first.found) == [(2, 2), (3, 2), (3, 3)]  # products, and the rotated gradient
    assert {names.get(id(v)) for v in second.given} == {None, "left_basis", "right_basis"}
    assert [v.aval.shape for v in second.found] == [(3, 2)]


# --- Mistakes -------------------------------------------------------------------------------------------------------


class Wrong(Seen):
    what: str = eqx.field(static=True, default="")
    weight_dimension_numbers: ClassVar = mx.by_path({"*": mx.MuonDimensionNumbers(-2, -1)})

    def init_matrix(self, x):
        shape = {"batch": (4, *x.shape[:-2])}.get(self.what, x.shape[:-2])
        return SeenState(jnp.zeros(shape))

    def update_matrix(self, now, g, s, p):
        u = g[..., :1] if self.what == "update" else g
        return u, SeenState(s.largest[..., None] if self.what == "state" else s.largest)


class EntriesState(mx.AbstractState):
    rows: PyTree
    count: Array | None = mx.counter()


class Entries(mx.AbstractMatrixwise[EntriesState]):
    def init_matrix(self, x):
        return EntriesState(jnp.zeros(x.shape[:-1]))

    def update_matrix(self, now, g, s, p):
        return g, s


class NoImprovement(rules()["Roots"]):
    factors: ClassVar = {"left": "left_root"}
    improve_factor = mx.AbstractMatrixwise.improve_factor


@pytest.mark.parametrize(
    "rule, message",
    [
        (
            Wrong(what="batch"),
            r"`largest` has shape \(4, 2\) for matrices of shape \(2, 3, 4\).*`\(\*x.shape\[:-2\], ...\)`",
        ),
        (Wrong(what="update"), r"An update of shape \(2, 3, 4\) became one of shape \(2, 3, 1\)"),
        (Wrong(what="state"), r"The field `largest` of shape \(2,\) became one of shape \(2, 1\)"),
        (Entries(), r"`rows` has shape \(2,\).*declare it with `like_params\(per_matrix=True\)`"),
    ],
)
def test_a_wrong_shape_is_named(rule: Any, message: str):
    params = {"kernel": jnp.ones((2, 3) if isinstance(rule, Entries) else (2, 3, 4))}
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)) as error:
        rule.update(params, rule.init(params))
    assert any(type(rule).__name__ in note for note in error.value.__notes__)


def test_factors_are_those_of_rows_and_columns():
    class Named(rules()["Roots"]):
        factors: ClassVar = {"right": "right_root", "left_root": "left"}

    params = {"w": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match="of rows `left` and those of columns `right`; it has `left_root`"):
        Named().update(params, Named().init(params))


def test_joined_matrices_have_nothing_that_is_computed_every_few_steps():
    class Split(rules()["LowRank"]):
        is_split: ClassVar = True

    params = {"w": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match="`Split` has `is_split`, with which nothing is computed every few steps"):
        Split().update(params, Split().init(params))


def test_factors_need_an_improvement():
    class Lacking(rules()["LowRank"]):
        improve_matrix = mx.AbstractMatrixwise.improve_matrix

    params = {"w": jnp.ones((2, 3))}
    with pytest.raises(NotImplementedError, match="`Lacking` has `improved`, but no `improve_matrix`"):
        Lacking().update(params, Lacking().init(params))
    with pytest.raises(NotImplementedError, match="`NoImprovement` has `factors`, but no `improve_factor`"):
        NoImprovement().update(params, NoImprovement().init(params))

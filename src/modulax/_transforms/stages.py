"""A function of one matrix, divided into what is computed where a mesh has the matrices, and what needs whole ones.

The devices of a mesh divide each matrix. Arithmetic on entries, and sums and maxima of them, are computed where these
are. Products, decompositions and anything else need whole matrices, so that values have to travel. `stages_of` finds
them in the program of the function: a rule is written as in its paper, and what travels is no more than what its
products read and return. Stages on entries and on whole matrices alternate. What is computed on entries is computed
again wherever it is needed, and does not travel.
"""

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import AbstractMesh
from jaxtyping import Array, PyTree

Together = Callable[..., Sequence[Sequence[Array]]]

# Primitives of JAX that can be computed on parts of matrices. Those that are missing here are computed on whole ones.
_ON_ENTRIES = frozenset(
    [
        *("abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "conj", "convert_element_type", "copy", "div"),
        *("eq", "exp", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "log", "lt", "max", "min", "mul", "ne"),
        *("neg", "not", "or", "pow", "real", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_sum"),
        *("rsqrt", "select_n", "sign", "sqrt", "square", "squeeze", "stop_gradient", "sub", "tanh", "transpose"),
    ]
)
_CALLS = frozenset(["jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"])


class Stage(NamedTuple):
    """Equations of a program.

    Args:
        equations: the equations, in order.
        shared: the variables that they read and that are the same for all matrices.
        given: the variables that they read and that differ among matrices.
        found: the variables to return.
    """

    equations: list[Any]
    shared: list[Any]
    given: list[Any]
    found: list[Any]

    def __call__(self, shared: Sequence[Array], *values: Array) -> list[Array]:
        """Return the values of `found` for a batch of matrices, on the first axis of all arrays.

        Args:
            shared: the values of the variables `shared`.
            values: those of `given`.
        """
        constants = dict(zip(self.shared, shared, strict=True))

        def of_one(*values: Array) -> list[Array]:
            known = constants | dict(zip(self.given, values, strict=True))
            return [jnp.asarray(x) for x in _evaluate(self.equations, known, self.found)]

        return jax.vmap(of_one)(*values)


class Staged:
    """A function of one matrix in stages, of which every second one is computed on whole matrices.

    The stage of an equation that needs whole matrices is that of the last such equation before it, if it needs nothing
    else that has to travel, and else the next one. Stages on whole matrices are counted from one; zero is the start.

    Args:
        closed: the program of the function.
        shared: the values of its first arguments, which are the same for all matrices.
        shapes: its other arguments, which differ among matrices, as a tuple of trees.
        result: its result, as a tuple of trees.

    Attributes:
        stages: on entries, on whole matrices, on entries, and so on.
        arguments: the variables of the arguments that differ.
        constants: the values that are the same for all matrices.
        kinds: of which argument a variable is like, or of which result: 0 for the first one.
        structure: the structure of the result, whose arrays are what the last stage finds.
        maker: the equation of each variable.
        effects: the equations without results, such as those of `jax.debug.print`, which the last stage computes.
        roots: the arguments and results of whole matrices from which a variable is computed on entries; none if it is
            the same for all matrices.
        stage: that of each root.
        brought: what each stage on whole matrices gets.
        returned: what each of them returns.
    """

    def __init__(self, closed: Any, shared: Sequence[Array], shapes: PyTree, result: PyTree):
        self.program, count = closed.jaxpr, len(shared)
        self.arguments, self.structure = self.program.invars[count:], jtu.tree_structure(result)
        constants = [*self.program.constvars, *self.program.invars[:count]]
        self.constants = dict(zip(constants, [*closed.consts, *shared], strict=True))
        self.maker = {v: equation for equation in self.program.eqns for v in equation.outvars}
        self.effects = [equation for equation in self.program.eqns if not equation.outvars]
        self.roots = {v: frozenset([v]) for v in self.arguments}
        self.stage = dict.fromkeys(self.arguments, 0)
        self.brought: dict[int, dict[Any, None]] = collections.defaultdict(dict)
        self.returned: dict[int, dict[Any, None]] = collections.defaultdict(dict)
        for equation in self.program.eqns:
            roots = frozenset().union(*map(self._roots, _variables(equation)))
            if equation.outvars and roots and not _is_on_entries(equation):
                self._place(equation)
            else:
                self.roots.update(dict.fromkeys(equation.outvars, roots))
        self.stages = self._stages()
        kinds = dict(zip(self.arguments, _places(shapes), strict=True))
        found = zip(self.program.outvars, _places(result), strict=True)
        self.kinds = self._spread(kinds | {v: i for v, i in found if v in self.maker})

    @property
    def read(self) -> set[Any]:
        """The variables of the arguments that are read."""
        return set(self.arguments) & {v for stage in self.stages for v in stage.given}

    def __call__(self, leaves: Sequence[dict[Any, Array]], together: Together) -> list[PyTree]:
        """Return the results for each of several leaves.

        Args:
            leaves: for each leaf, the values of the arguments that are read, with an axis that counts matrices first.
            together: computes a stage on whole matrices for all leaves. Its arguments are the stage, the values that
                all matrices share, the forms of what it gets and returns, and the arrays of each leaf.
        """
        known, found = [dict(values) for values in leaves], []
        for n, stage in enumerate(self.stages):
            shared = [self.constants[v] for v in stage.shared]
            given = [[values[v] for v in stage.given] for values in known]
            if n % 2:
                needed, returned = ([self.form(v) for v in vs] for vs in (stage.given, stage.found))
                found = together(stage, shared, needed, returned, given)
            else:
                function = jax.jit(stage.__call__)  # traced once for each shape
                found = [function(shared, *values) for values in given]
            for values, new in zip(known, found, strict=True):
                values.update((v, x) for v, x in zip(stage.found, new, strict=True) if not _is_literal(v))
        return [self.structure.unflatten(values) for values in found]

    def form(self, v: Any) -> tuple[tuple[int, ...], bool]:
        """The shape of a value for one matrix, and whether it holds entries of it: a factor of a square one may not."""
        return v.aval.shape, self.kinds.get(v) != 1

    def _stages(self) -> list[Stage]:
        """The stages, of which every second one is computed on whole matrices."""
        read = itertools.chain(*map(_variables, self.effects))
        wanted = [v for vs in (self.program.outvars, read, *self.brought.values()) for v in vs if not _is_literal(v)]
        # What they are computed from on entries, and one value in place of several where a stage has it.
        for u in itertools.chain(*(self._sources(v, self._is_result) for v in reversed(wanted))):
            if last := max(self.stage[root] for root in self.roots[u]):
                self.returned[last][u] = None
        found, known = [], set(self.arguments)
        for k, brought in self.brought.items():
            found += [self._between(known, list(brought)), self._between(set(brought), list(self.returned[k]))]
            known |= set(self.returned[k])
        return [*found, self._between(known, self.program.outvars, self.effects)]

    def _spread(self, kinds: dict[Any, int]) -> dict[Any, int]:
        """What variables are like: arithmetic is between arrays of one kind."""
        rows = [
            [v for v in (*_variables(each), *each.outvars) if self._roots(v) and v.aval.shape == shape]
            for each in self.program.eqns
            for shape in [v.aval.shape for v in each.outvars[:1]]
            if _is_on_entries(each) and each.primitive.name != "transpose"
        ]
        while new := {v: kinds[u] for row in rows for u in row if u in kinds for v in row if v not in kinds}:
            kinds = kinds | new
        return kinds

    def _roots(self, v: Any) -> frozenset[Any]:
        return self.roots.get(v, frozenset())

    def _place(self, equation: Any) -> None:
        """Choose the stage of an equation that needs whole matrices, and what is brought there for it."""
        needed = [v for v in _variables(equation) if self._roots(v)]
        last = max(self.stage[root] for v in needed for root in self._roots(v))
        if not last or not all(self._is_there(v, last) or len(self._roots(v)) == 1 for v in needed):
            last += 1
        for v in needed:
            if not self._is_there(v, last):
                roots = self._roots(v)
                self.brought[last].update(dict.fromkeys(roots if len(roots) == 1 else [v]))
        self.roots |= {v: frozenset([v]) for v in equation.outvars}
        self.stage.update(dict.fromkeys(equation.outvars, last))

    def _sources(self, v: Any, is_known: Callable[[Any], bool]) -> list[Any]:
        """The roots, and the values before them that are known, from which a value is computed on entries."""
        found, waiting = dict[Any, bool](), [v]
        while waiting:
            v = waiting.pop()
            if v not in found and self._roots(v):
                found[v] = v in self.stage or is_known(v)
                waiting += [] if found[v] else _variables(self.maker[v])
        return [v for v, is_source in found.items() if is_source]

    def _is_there(self, v: Any, stage: int) -> bool:
        """Whether a stage on whole matrices has a value, or can compute it from what it has."""
        brought = self.brought[stage]
        sources = self._sources(v, brought.__contains__)
        return all(u in brought or 0 < self.stage[u] == stage for u in sources)

    def _is_result(self, v: Any) -> bool:
        """Whether the stage of the last value from which another one is computed on entries returns the latter."""
        last = max(self.stage[root] for root in self._roots(v))
        return last > 0 and len(self._roots(v)) > 1 and self._is_there(v, last)

    def _between(self, known: set[Any], found: list[Any], effects: Sequence[Any] = ()) -> Stage:
        """The stage that computes some values, and equations without results, from the values that are known."""
        needed = dict.fromkeys(v for v in found if not _is_literal(v))
        equations = []
        for equation in reversed(self.program.eqns):
            if equation in effects or any(v in needed and v not in known for v in equation.outvars):
                equations.append(equation)
                needed.update(dict.fromkeys(_variables(equation)))
        given = [v for v in needed if v in known]
        shared = [v for v in needed if v not in known and v not in self.maker]
        # A batch of results needs one of arguments.
        return Stage(equations[::-1], shared, given or self.arguments[:1], found)


def stages_of(function: Callable[..., PyTree], shared: PyTree, *shapes: PyTree) -> Staged:
    """Divide a function of one matrix, and of what belongs to it, into stages.

    Args:
        function: of values that all matrices share, trees of matrices, and trees of what belongs to them. It returns
            two such trees.
        shared: the values that all matrices share.
        shapes: the shapes and dtypes of its other arguments.
    """
    # Without the mesh in use: equations keep it, and a device of it computes them on arrays of its own.
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        plain = jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shared)  # of no mesh
        closed, result = jax.make_jaxpr(function, return_shape=True)(plain, *shapes)
    return Staged(closed, jtu.tree_leaves(shared), shapes, result)


def _places(trees: PyTree) -> list[int]:
    """For each array in a tuple of trees, the place of its tree."""
    return [i for i, tree in enumerate(trees) for _ in jtu.tree_leaves(tree)]


def _variables(equation: Any) -> list[Any]:
    return [v for v in equation.invars if not _is_literal(v)]


def _is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def _value(known: dict[Any, Any], variable: Any) -> Any:
    return variable.val if _is_literal(variable) else known[variable]


def _evaluate(equations: Sequence[Any], known: dict[Any, Any], found: Sequence[Any]) -> list[Any]:
    """The values of some variables."""
    for each in equations:
        results = _results(each, [_value(known, v) for v in each.invars])
        known.update(zip(each.outvars, results, strict=True))
    return [_value(known, v) for v in found]


def _results(equation: Any, values: list[Any]) -> Sequence[Array]:
    if equation.primitive.name in ("jit", "pjit"):
        # By its equations: the types of its own results name no mesh.
        closed = equation.params["jaxpr"]
        program = closed.jaxpr
        known = dict(zip([*program.constvars, *program.invars], [*closed.consts, *values], strict=True))
        return _evaluate(program.eqns, known, program.outvars)
    functions, params = (), equation.primitive.get_bind_params(equation.params)
    if isinstance(params, tuple):  # before JAX 0.11
        functions, params = params
    found = equation.primitive.bind(*functions, *values, **params)
    return found if equation.primitive.multiple_results else [found]


def _is_on_entries(equation: Any) -> bool:
    """Whether an equation can be computed on parts of matrices."""
    if equation.primitive.name not in _CALLS:
        return equation.primitive.name in _ON_ENTRIES
    inner = [getattr(x, "jaxpr", x) for x in equation.params.values() if hasattr(getattr(x, "jaxpr", x), "eqns")]
    return all(_is_on_entries(each) for program in inner for each in program.eqns)

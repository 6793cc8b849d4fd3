"""The house rules that a machine can check, on the files of `src/modulax` as they lie on disk.

The tables at the top are the rules; what follows only reads them. Nothing here imports modulax,
except one fresh interpreter that does nothing else.
"""

import ast
import json
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from .loops import each


class Layer(NamedTuple):
    """Modules and packages of one height: they may import every layer above theirs in the table.

    In an ordered layer, a module may also import those listed before it. In the others, the modules
    don't import each other.
    """

    modules: tuple[str, ...]
    ordered: bool = False


# From the bottom up: imports go down only. A name is a file or a package.
# Within a package, imports are free as long as they make no circle.
LAYERS = (
    Layer(("_support",)),
    Layer(("numerics", "tree", "linalg"), ordered=True),
    Layer(("_protocol",)),
    Layer(("_roles",)),
    Layer(("schedules", "_transforms", "microbatching")),
    Layer(("_containers",)),
    Layer(("authoring",)),
    Layer(("_rules", "states"), ordered=True),
    Layer(("_plugin",)),
    Layer(("projections", "losses", "assignment", "perturbations", "second_order", "estimators"), ordered=True),
    Layer(("aggregate", "_explain", "_catalog"), ordered=True),
    Layer(("testing", "nnx", "linen", "compat", "checkpoint", "sweeps", "planning"), ordered=True),
)

# The fence: rooms above it import public names of the core, and what it declares for them. A room may declare names for
# others likewise, in a module of this name.
FENCE = "_plugin"
MOST_NAMES_IN_FENCE = 212

# Third parties beyond the base dependencies of pyproject.toml, and who alone may import them.
EDGES = {
    "testing": {"flax", "orbax", "optax"},
    "nnx": {"flax"},
    "linen": {"flax"},
    "checkpoint": {"orbax"},
    "sweeps": {"cloudpickle", "tqdm", "scipy", "optuna", "tensorboardX", "wandb", "mlflow"},
    "planning": set(),  # of the base dependencies; its compilers are loaded by JAX
}
# `import modulax` loads no edge and none of these.
NOT_IMPORTED = {"flax", "orbax", "optax", "matplotlib", "chex", "optuna", "tqdm", "tensorboardX", "wandb", "mlflow"}

# Imports inside a function: (file below src/modulax, module as written) and the reason. An entry may be a third party
# that the file could not import at the top.
LAZY_IMPORTS: dict[tuple[str, str], str] = {
    ("sweeps/_optuna.py", "optuna"): "an extra, which only `sweeps.optuna` needs",
    ("sweeps/_optuna.py", "optuna.study"): "an extra, which only `sweeps.optuna` needs",
    ("sweeps/_optuna.py", "optuna.trial"): "an extra, which only `sweeps.optuna` needs",
    ("sweeps/_spaces.py", "scipy.stats"): "takes half a second to import, for quasi-random points only",
    ("checkpoint/_optax.py", "modulax.checkpoint._optax_plan"): "loads `compat`, and so all rules",
    ("_containers/optax_adapters.py", "optax"): "`to_optax` makes what only whoever has optax asks for",
}

# Concrete classes that may have subclasses, and the reason.
NOT_FINAL: dict[str, str] = {
    "GradientTransformation": "a base class in optax too, of which programs have subclasses",
    "GradientTransformationExtraArgs": "the same",
    "Matrix": "the role of all matrices inside a model, which a group by role names",
}
# Abstract classes that leave nothing to their subclasses, and the reason.
SHARED_CODE = {
    "AbstractModule": "how methods are bound: alike in transforms, schedules and states",
    "AbstractState": "the states of all transforms, which share nothing but that",
    "AbstractNamedRole": "the name of a role that is called like its class",
    "AbstractRole": "the axes: alike in all roles",
    "AbstractHyperparameters": "numbers, `replace` and repr: alike in transforms and schedules",
    "AbstractFields": "groups of hyperparameters, each with the sentences on its fields",
    "AbstractRated": "the learning rate, and a chain for whoever has a direction",
}

MOST_ROOMS = 30  # files and packages at the root of the package; the last is the fence
MOST_LINES = 500
MOST_MEDIAN_LINES = 200

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "modulax"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# --- Reading the files ---------------------------------------------------------------------------


class Import(NamedTuple):
    line: int
    module: str  # absolute; of a relative import, the module it resolves to
    names: dict[str, str]  # bound name -> imported name; empty for `import x`
    relative: bool
    nested: bool  # inside a function or class
    alias: str = ""  # of a module that `from .. import module as alias` binds

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Source:
    path: Path

    def __str__(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def module(self) -> str:
        """The dotted name, starting with modulax."""
        parts = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def top(self) -> str:
        """The name that LAYERS knows: the first part below modulax, or "" for modulax itself."""
        return f"{self.module}..".split(".")[1]

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports(self.tree, nested=False))

    def _imports(self, node: ast.AST, *, nested: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(child.lineno, alias.name, {}, relative=False, nested=nested)
            elif isinstance(child, ast.ImportFrom):
                yield from self._import_from(child, nested=nested)
            else:
                scopes = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
                yield from self._imports(child, nested=nested or isinstance(child, scopes))

    def _import_from(self, node: ast.ImportFrom, *, nested: bool) -> Iterator[Import]:
        package = self.module.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*package, *([node.module] if node.module else [])])
        names: dict[str, str] = {}
        for alias in node.names:
            if node.level and f"{module}.{alias.name}" in SOURCES:  # from . import module
                submodule = f"{module}.{alias.name}"
                yield Import(node.lineno, submodule, {}, True, nested, alias.asname or alias.name)
            else:
                names[alias.asname or alias.name] = alias.name
        if names:
            yield Import(node.lineno, module, names, relative=node.level > 0, nested=nested)


SOURCES = {source.module: source for source in sorted(map(Source, PACKAGE.rglob("*.py")), key=str)}
HEIGHT = {
    name: (height, place if layer.ordered else 0)
    for height, layer in enumerate(LAYERS)
    for place, name in enumerate(layer.modules)
}
each_source = each(SOURCES.values())


# --- Imports -------------------------------------------------------------------------------------


def test_there_is_something_to_check():
    assert "modulax" in SOURCES, f"{PACKAGE} has no __init__.py"


def test_every_module_has_a_layer():
    names = [name for layer in LAYERS for name in layer.modules]
    assert len(names) == len(set(names)), "a name stands twice in LAYERS"
    there = {source.top for source in SOURCES.values()} - {""}
    assert there == set(names), f"LAYERS in {Path(__file__).name} and the tree differ by {sorted(there ^ set(names))}"
    assert len(there) <= MOST_ROOMS
    assert set(names) >= EDGES.keys(), "an edge has no layer"


def _mistake(source: Source, imported: Import) -> str | None:
    """The mistake in an import of modulax by modulax, if there is one."""
    target = f"{imported.module}..".split(".")[1]
    if not imported.relative:
        return "an absolute import of modulax; write it relatively"
    if imported.module not in SOURCES:
        return "no such module"
    if source.top == "":
        return "modulax itself imports no edge" if target in EDGES else None
    if target == "" and HEIGHT[source.top] < HEIGHT[FENCE]:
        return "the core imports nothing from modulax itself"
    targets = {homes()[name] for name in imported.names.values()} if target == "" else {target}
    if {source.top} == targets or not targets | {source.top} <= HEIGHT.keys():
        return None  # siblings; an unknown name has a test of its own
    are_below = all(HEIGHT[x] < HEIGHT[source.top] for x in targets)
    return None if are_below else "imports go down only, see LAYERS"


@cache
def homes() -> dict[str, str]:
    """The room of each public name, from `__init__.pyi`."""
    body = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8")).body
    imports = [x for x in body if isinstance(x, ast.ImportFrom)]
    return {alias.name: (x.module or alias.name).split(".")[0] for x in imports for alias in x.names}


@each_source
def test_imports_go_down_only(source: Source):
    mistakes = [
        f"{source}:{i.line} imports {i.module}: {mistake}"
        for i in source.imports
        if i.root == "modulax" and (mistake := _mistake(source, i))
    ]
    assert not mistakes, "\n".join(mistakes)


def _beyond_the_fence(source: Source) -> bool:
    return source.top in HEIGHT and HEIGHT[source.top] > HEIGHT[FENCE]


@each_source
def test_rooms_beyond_the_fence_import_what_is_declared(source: Source):
    """Public names, and those of the fence: whatever else the core has can change without them."""
    others = [i for i in source.imports if i.relative and f"{i.module}..".split(".")[1] != source.top]
    private = [
        f"{source}:{i.line} imports {name} from {i.module}"
        for i in others
        for name in i.names.values() or [i.module.rpartition(".")[2]]
        if any(part[0] == "_" for part in (*i.module.split(".")[1:], name)) and FENCE not in i.module.split(".")
    ]
    remedy = "import a public name, or declare it in `_plugin`"
    assert not (private and _beyond_the_fence(source)), "\n".join([*private, remedy])


def test_the_fence_declares_what_is_used():
    """It is short, and each of its names has a user beyond it."""
    doors = [source for source in SOURCES.values() if FENCE in source.module.split(".")]
    declared = {(source.module, name) for source in doors for i in source.imports for name in i.names}
    users = [source for source in SOURCES.values() if _beyond_the_fence(source)]
    used = {(i.module, name) for source in users for i in source.imports for name in i.names.values()}
    assert not declared - used
    assert len(declared) <= MOST_NAMES_IN_FENCE


@each_source
def test_strings_import_nothing_above(source: Source):
    """A module that is imported by its name is one of the same room or below, except by `modulax` itself."""
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and node.args]
    given = [(call.lineno, call.args[0]) for call in calls if ast.unparse(call.func).endswith("import_module")]
    texts = [(line, text.values[0] if isinstance(text, ast.JoinedStr) else text) for line, text in given]
    names = [(line, str(text.value)) for line, text in texts if isinstance(text, ast.Constant)]
    mistakes = [
        f"{source}:{line} imports {name} by its name; write a slot of `_support/slots.py`"
        for line, name in names
        if name.startswith((".", "modulax")) and source.top and name.split(".")[1:2] != [source.top]
    ]
    assert not mistakes, "\n".join(mistakes)


def test_imports_make_no_circle():
    def below(module: str) -> set[str]:
        return {
            i.module for i in SOURCES[module].imports if i.module in SOURCES and i.module != module and not i.nested
        }

    remaining = {module: below(module) for module in SOURCES}
    while ready := [module for module, needs in remaining.items() if not needs & remaining.keys()]:
        for module in ready:
            del remaining[module]
    circle = {m: sorted(needs & remaining.keys()) for m, needs in remaining.items()}
    assert not circle, f"modules that import each other, or wait for some that do: {circle}"


@each_source
def test_imports_stand_at_the_top(source: Source):
    lazy = [
        f"{source}:{i.line} imports {i.module} inside a function"
        for i in source.imports
        if i.nested and (str(source), i.module) not in LAZY_IMPORTS
    ]
    assert not lazy, "\n".join([*lazy, "move it to the top, or give the reason in LAZY_IMPORTS"])


def test_lazy_imports_exist():
    found = {(str(source), i.module) for source in SOURCES.values() for i in source.imports if i.nested}
    assert not LAZY_IMPORTS.keys() - found, "remove entries that no longer exist from LAZY_IMPORTS"


@each_source
def test_third_party_imports(source: Source):
    declared = {
        re.split(r"[^\w-]", requirement)[0].replace("-", "_").lower()
        for requirement in PYPROJECT["project"]["dependencies"]
    }
    allowed = declared | sys.stdlib_module_names | {"modulax"} | EDGES.get(source.top, set())
    strangers = [
        f"{source}:{i.line} imports {i.module}"
        for i in source.imports
        if i.root not in allowed and not (i.nested and (str(source), i.module) in LAZY_IMPORTS)
    ]
    assert not strangers, "\n".join([*strangers, f"allowed beside the standard library: {declared}"])


def test_imports_are_light():
    """`import modulax` loads no JAX, an optimizer loads what it is made of, and all names together load no extra.

    JAX has not looked for devices yet.
    """
    program = """
import json, sys
import modulax
loaded = [sorted(sys.modules)]
modulax.AdamW(modulax.schedules.Linear(0.0, 1e-3, 10))
loaded += [sorted(sys.modules)]
from modulax import *
from jax._src import xla_bridge
print(json.dumps([*loaded, sorted(sys.modules), xla_bridge.backends_are_initialized()]))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    *stages, backend_is_started = json.loads(run.stdout)
    bare, one, everything = ([name for name in stage if name.startswith("modulax")] for stage in stages)
    assert bare == ["modulax", "modulax._support", "modulax._support.slots"]
    assert not {"jax", "equinox", "numpy", "optree"} & set(stages[0])
    assert not [
        name for name in one if re.search(r"\.(_catalog|losses|states|_\w+\.(sophia|muon|lion|low_bit))\b", name)
    ]
    assert len(one) < len(everything) / 3
    loaded = NOT_IMPORTED & {name.partition(".")[0] for name in stages[2]}
    edges = [name for name in everything if re.match(rf"modulax\.({'|'.join(EDGES)})\b", name)]
    assert not loaded, f"modulax imports {loaded}"
    assert not edges, f"modulax imports its edges {edges}"
    assert not backend_is_started, "importing modulax starts a JAX backend"


# --- Size ----------------------------------------------------------------------------------------


@each_source
def test_file_length(source: Source):
    assert len(source.text.splitlines()) <= MOST_LINES


def test_median_file_length():
    lengths = [len(source.text.splitlines()) for source in SOURCES.values()]
    assert statistics.median(lengths) <= MOST_MEDIAN_LINES


# --- Classes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Class:
    source: Source
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name

    def __str__(self) -> str:
        return f"{self.source}:{self.node.lineno} {self.name}"

    @property
    def is_named_abstract(self) -> bool:
        return self.name.lstrip("_").startswith("Abstract")

    @cached_property
    def bases(self) -> "list[Class]":
        """Its direct bases among the classes of modulax."""
        found = (_find(self.source.module, _dotted(base)) for base in self.node.bases)
        return [base for base in found if base is not None]

    @cached_property
    def foreign_bases(self) -> list[str]:
        names = map(_dotted, self.node.bases)
        return [name for name in names if _find(self.source.module, name) is None]

    @cached_property
    def is_dataclass(self) -> bool:
        return (
            any("dataclass" in ast.unparse(decorator) for decorator in self.node.decorator_list)
            or any(name.endswith(("Module", "NamedTuple")) for name in self.foreign_bases)
            or any(base.is_dataclass for base in self.bases)
        )

    @cached_property
    def is_group(self) -> bool:
        """Whether it is a group of fields."""
        return any(base.name == "AbstractFields" or base.is_group for base in self.bases)

    @cached_property
    def constants(self) -> set[str]:
        """The names that it or a base declares as those of constants."""
        own = [x for x in self.node.body if isinstance(x, ast.AnnAssign) and "ClassVar[" in ast.unparse(x.annotation)]
        return {name for x in own for name in _bound_names(x)}.union(*(base.constants for base in self.bases))

    @cached_property
    def undefined(self) -> set[str]:
        """The abstract members, its own and inherited, that it leaves to its subclasses."""
        inherited = {name for base in self.bases for name in base.undefined}
        return (inherited - self.defined) | self._declares()

    @cached_property
    def defined(self) -> set[str]:
        """The members that it or a base defines."""
        return {name for base in self.bases for name in base.defined} - self._declares() | self._defines()

    def _defines(self) -> set[str]:
        return {name for statement in self.node.body if not _is_abstract(statement) for name in _bound_names(statement)}

    def _declares(self) -> set[str]:
        return {name for statement in self.node.body if _is_abstract(statement) for name in _bound_names(statement)}


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node)


def _bound_names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [t.id for t in targets if isinstance(t, ast.Name)]
    return []


def _is_abstract(statement: ast.stmt) -> bool:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return any("abstract" in ast.unparse(d) for d in statement.decorator_list)
        case ast.AnnAssign():
            return "AbstractVar[" in (note := ast.unparse(statement.annotation)) or ("AbstractClassVar[" in note)
    return False


@cache
def classes() -> dict[tuple[str, str], Class]:
    return {
        (source.module, node.name): Class(source, node)
        for source in SOURCES.values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }


each_class = each(lambda: classes().values())


def _find(module: str, name: str) -> Class | None:
    """The class of modulax that `name` means in `module`, through imports and re-exports."""
    if (module, name) in classes():
        return classes()[module, name]
    first, _, rest = name.partition(".")
    for i in SOURCES[module].imports:
        if i.module not in SOURCES:
            continue
        if first in i.names:
            return _find(i.module, i.names[first] + (f".{rest}" if rest else ""))
        if rest and first == i.alias:
            return _find(i.module, rest)
    return None


@each_class
def test_class_is_abstract_or_final(cls: Class):
    if cls.is_named_abstract:
        assert cls.undefined or cls.name in SHARED_CODE or cls.is_group, (
            f"{cls} leaves nothing to its subclasses; give it an abstract method or AbstractVar, or another name"
        )
    else:
        foreign = {name.rpartition(".")[2] for name in cls.foreign_bases}
        assert "Protocol" in foreign or not cls.undefined, (
            f"{cls} does not define {sorted(cls.undefined)}; define it, or call the class Abstract…"
        )
    for base in cls.bases:
        assert base.is_named_abstract or base.name in NOT_FINAL, (
            f"{cls} subclasses {base}, which is final; wrap it, or share an abstract base"
        )


@each_class
def test_every_field_is_annotated(cls: Class):
    """In a dataclass, an attribute without an annotation is not a field but silently a constant."""
    if not cls.is_dataclass:
        return
    bare = [
        f"{cls.source}:{statement.lineno} {cls.name}.{name}"
        for statement in cls.node.body
        if isinstance(statement, ast.Assign)
        for name in _bound_names(statement)
        if not (name.startswith("__") and name.endswith("__")) and name not in cls.constants
    ]
    assert not bare, "\n".join([*bare, "annotate it, with ClassVar if it is not a field"])


def test_concrete_classes_are_asked_for_in_their_own_modules():
    """`isinstance` elsewhere asks for an abstract class, so that a user's class is treated like ours."""
    mistakes = []
    for source in SOURCES.values():
        for call in ast.walk(source.tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("isinstance", "issubclass"):
                for name in ast.walk(call.args[1]):
                    cls = (
                        _find(source.module, ast.unparse(name)) if isinstance(name, ast.Name | ast.Attribute) else None
                    )
                    if cls and not cls.is_named_abstract and cls.source != source:
                        mistakes.append(f"{source}:{call.lineno} asks for {cls.name}")
    assert not mistakes, "\n".join(mistakes)


def test_an_algorithm_is_one_file():
    files = {name: module for module, name in classes() if not name.startswith("_")}
    transforms = {name.removeprefix("ScaleBy"): module for name, module in files.items() if name.startswith("ScaleBy")}
    optimizers = {name: module for name, module in files.items() if module.startswith("modulax._rules.")}
    both = transforms.keys() & optimizers.keys()
    assert len(both) > 30
    elsewhere = {name for name in both if transforms[name] != optimizers[name]}
    assert not elsewhere, "the transform and the optimizer of an algorithm are in one file"


def test_exceptions_to_the_classes_exist():
    names = {cls.name for cls in classes().values()}
    assert not (NOT_FINAL.keys() | SHARED_CODE.keys()) - names, "remove entries that no longer exist"

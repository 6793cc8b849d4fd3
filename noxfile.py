"""Every check of the project. `nox -l` lists them; CI runs them and nothing else."""

import os
import re
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"  # nox.project.dependency_groups
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True
# uv makes an environment in seconds, pip in a minute. `dev.py` installs it; who has nox alone needs no uv.
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "typecheck", "tests", "docs"]

ROOT = Path(__file__).parent
TESTS = ROOT / "tests"
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# Everything is checked on the CPU, so that the answer is the same everywhere. An accelerator is
# used when the caller asks for it: JAX_PLATFORMS=cuda nox -s benchmarks
ENVIRONMENT: dict[str, str | None] = {
    "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
    "MPLBACKEND": "Agg",
    "PYTHONUNBUFFERED": "1",
    # Tests keep their compiled programs here, for the next run and for other sessions. Delete it at any time.
    "MODULAX_TEST_CACHE": os.environ.get("MODULAX_TEST_CACHE", str(ROOT / ".nox" / "programs")),
    # Empty means unset. Without bytecode, each process rewrites the asserts of all tests and compiles all of modulax
    # and of what uv has installed.
    "PYTHONDONTWRITEBYTECODE": "",
}
# Tests that run with XLA's default code generator: the equations of the families on which the others build. `nox -s
# examples` runs whole trainings with it.
NUMBERS = (
    "test_equations.py",
    "test_equations_moments.py",
    "test_edges*.py",
    "test_conformance.py",
)
# Compiles in a half to a quarter of the time. XLA has no option for its old emitters any more since JAX 0.11.
QUICK_FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_use_fusion_emitters=false",
    # Without fused multiply-adds: level 0 writes a value twice, with one and without, and the gradient of a maximum
    # finds no entry that is equal to it.
    "--xla_cpu_max_isa=AVX",
)
# What need not run at every change. Numbers against published equations, released code, optax and SciPy:
THOROUGH = (
    "test_equations*.py",
    "test_references.py",
    "test_released_*.py",
    "test_earlier_states.py",
    "test_parity.py",
    "test_compat*.py",
    "test_with_optax.py",
    "test_functions.py",
    "test_losses_*.py",
    "test_cross_entropy.py",
    "test_ctc.py",
    "test_assignment.py",
    "test_perturbations.py",
    "test_control_variates.py",
    "test_estimators.py",
    "test_projections.py",
    "test_linear_algebra.py",
    "test_numerics.py",
    "test_optimizer_runs.py",
    # Families that change alone:
    "test_alignment.py",
    "test_factored.py",
    "test_low_bit.py",
    "test_microbatching.py",
    "test_muon.py",
    "test_mup.py",
    "test_orthonormal_factor.py",
    "test_preconditioners.py",
    "test_reshaping.py",
    "test_sophia.py",
    "test_stacked.py",
    "test_sweeps_plots.py",
    "test_testing.py",
    "test_tpu_decompositions.py",
    "test_where.py",
    # Every field of every class, every container around every rule, states divided over devices:
    "test_fields.py",
    "test_contract_options.py",
    "test_closure.py",
    "test_own_containers.py",
    "test_scheduled_numbers.py",
    "test_meshes.py",
    "test_many_devices.py",
    "test_spread.py",
    "test_sweeps_devices.py",
    "test_carry.py",
    "test_checkpoint_optax.py",
    # Whole trainings, line searches, and processes that are killed:
    "test_convergence.py",
    "test_lbfgs.py",
    "test_linesearch*.py",
    "test_sweeps_data.py",
    "test_sweeps_folder.py",
    "test_sweeps_searching.py",
    "test_sweeps_workers.py",
    "test_checkpoint_groups.py",
    "test_roles*.py",
    "test_settings.py",
    "test_training.py",
    "programs/test_language_model_trainers.py",
)
# The other sessions run on Python 3.13, which `dev.py` looks for. On these, the tests run that depend most on the
# versions of Python and of other libraries; numerical results don't. 3.11 is the old row: JAX left it at version 0.10.
MAIN_PYTHON = "3.13"
OTHER_PYTHONS = ["3.11", "3.12", "3.14"]
OLD_PYTHON = OTHER_PYTHONS[0]
COMPATIBILITY = (
    "test_architecture.py",
    "test_checkpoint.py",
    "test_chex_dataclasses.py",
    "test_containers.py",
    "test_describe.py",
    "test_entry.py",
    "test_errors.py",
    "test_hyperparameters.py",
    "test_leafwise.py",
    "test_linen.py",
    "test_models.py",
    "test_nnx.py",
    "test_optree.py",
    "test_public_api.py",
    "test_registry.py",
    "test_with_optax.py",
)
# Tests on the lowest versions that pyproject.toml names. Of the laws, those of moments, matrices, curvature, containers
# and low precision.
FLOORS = (
    "test_containers.py",
    "test_leafwise.py",
    "test_entry.py",
    "test_checkpoint.py",
    "test_floors.py",
    "journeys",
    *(f"test_contract.py::test_laws[ScaleBy{name}]" for name in ("Adam", "SOAP", "Muon")),
    *(f"test_contract.py::test_laws[{name}]" for name in ("HutchinsonDiagonal", "MultiSteps", "LowBit", "ParamEMA")),
)
# What fails there for reasons that are not ours.
NOT_ON_FLOORS = (
    # NNX needs a newer flax, and so JAX 0.10; test_floors.py reads the message. The journeys take such models.
    *("nnx", "accumulation_and_an_average", "no_decay_of_biases_and_norms", "lbfgs_finds_the_solution"),
    "labels_need_not_be_comparable",  # jaxlib 0.9 refuses None as the key of a dictionary
    "few_calls_of_python",  # counts calls within JAX
    "as_many_programs_as_there_are_shapes",  # listens to JAX, which 0.7 can't stop
)
OLD_LIBRARIES = ("libraries/test_gpjax.py", "libraries/test_documentation.py")  # GPJax requires jax<0.11
# A script of examples/ that takes minutes says so, with this comment in its first lines.
SLOW = "# nox: slow"

EVERY_EXTRA = "[nnx,orbax,plot,sweeps,optuna]"
UNPINNED = bool(os.environ.get("MODULAX_UNPINNED"))
# One worker per core; a worker keeps all its cores busy while XLA compiles, so not more than 8.
PYTEST = ("python", "-m", "pytest", "-n", "logical", "--maxprocesses", "8", "--dist", "worksteal")


def install(session: nox.Session, group: str, *modulax: str, newest: bool = UNPINNED) -> None:
    """Install a dependency group, and modulax in place where its requirement is given (`-e .`).

    One call, so that one resolution covers both. The versions that the project is tested
    with are constraints; MODULAX_UNPINNED=1 takes whatever is newest instead.
    """
    versions = ["--upgrade"] if newest else ["-c", str(ROOT / ".ci/constraints.txt")]
    requirements = nox.project.dependency_groups(PYPROJECT, group)
    session.install("--quiet", *versions, *requirements, *modulax)


def quick_environment(session: nox.Session) -> dict[str, str | None]:
    """The environment with those of `QUICK_FLAGS` that the installed XLA knows: it aborts on others, and names them."""
    asked = ENVIRONMENT | {"XLA_FLAGS": " ".join(QUICK_FLAGS)}
    output = session.run("python", "-c", PROBE, env=asked, silent=True, success_codes=range(-128, 256), log=False)
    unknown = " ".join(re.findall(r"Unknown flags? in XLA_FLAGS: (.*)", str(output))).split()
    return ENVIRONMENT | {"XLA_FLAGS": " ".join(flag for flag in QUICK_FLAGS if flag not in unknown)}


# Imports what most tests import: in a fresh environment, each worker would compile it to bytecode, which takes as long
# as collecting the tests. Not all is installed, or works, in every environment.
PROBE = """
import contextlib, importlib
for name in ("equinox", "optax", "flax.nnx", "orbax.checkpoint", "hypothesis", "matplotlib.pyplot", "sklearn.datasets"):
    with contextlib.suppress(Exception):
        importlib.import_module(name)
import jax
jax.devices()
"""


@nox.session
def lint(session: nox.Session) -> None:
    """Style, import order, likely bugs and formatting (`-- --fix` repairs what can be repaired)."""
    install(session, "lint")
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []))
    session.run("ruff", "format", *([] if fix else ["--diff"]))
    shown = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
    # Below `api` are pages of classes, which the build of the site writes.
    pages = [str(page) for page in shown if "_build" not in page.parts and page.parent.parent.name != "api"]
    narrow = ["--line-length", "88", "--config", "format.exclude=[]"]
    session.run("ruff", "format", *narrow, *([] if fix else ["--diff"]), *pages)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Pyright over src, tests, examples, benchmarks and this file; pyright and mypy over scripts of users."""
    install(session, "typecheck", "-e", f".{EVERY_EXTRA}")
    python = str(Path(session.bin) / "python")
    session.run("pyright", "--pythonpath", python, *session.posargs)
    if not session.posargs:
        session.run("python", "-m", "tests.users", env=ENVIRONMENT)


@nox.session
def tests(session: nox.Session) -> None:
    """The tests of every day; arguments after `--` go to pytest (`-- -n 0 -k adam`), and may name any test.

    `-- --changed` runs what a change since `main` can break, also of `thorough`; `-- --changed=HEAD~1` since then.
    """
    install(session, "tests", "-e", f".{EVERY_EXTRA}")
    if session.posargs:
        is_of_change = any(argument.startswith("--changed") for argument in session.posargs)
        environment = quick_environment(session) if is_of_change else ENVIRONMENT
        session.run(*PYTEST, "-p", "tests.changed", *session.posargs, env=environment)
        return
    others = [f"--ignore={file}" for file in files(*NUMBERS, *THOROUGH)]
    session.run(*PYTEST, *others, env=quick_environment(session))


@nox.session
def thorough(session: nox.Session) -> None:
    """The other tests: numbers against what others compute, every composition, many devices, whole trainings."""
    install(session, "tests", "-e", f".{EVERY_EXTRA}")
    # Numerical results may depend on the code that XLA generates. Those of the other tests don't.
    numbers = files(*NUMBERS)
    session.run(*PYTEST, *numbers, env=ENVIRONMENT)
    others = [file for file in files(*THOROUGH) if file not in numbers]
    session.run(*PYTEST, *others, env=quick_environment(session))


def files(*patterns: str) -> list[str]:
    """The files of tests that match."""
    return [f"tests/{file.relative_to(TESTS)}" for pattern in patterns for file in sorted(TESTS.glob(pattern))]


@nox.session
def libraries(session: nox.Session) -> None:
    """Other libraries that take optax optimizers, with ours; tools that log sweeps, and engines that run them."""
    install(session, "libraries", "-e", f".{EVERY_EXTRA}")
    session.run(*PYTEST, "tests/libraries", *session.posargs, env=quick_environment(session))


@nox.session
def laws(session: nox.Session) -> None:
    """Every law on every instance, and for every container; `tests` only checks a law on those that could break it."""
    install(session, "tests", "-e", f".{EVERY_EXTRA}")
    files = [
        f"tests/test_{name}.py"
        for name in (
            *("contract", "contract_options", "closure", "scheduled_numbers", "convergence", "checkpoint_chains"),
            *("compat_chains", "compat_states"),
        )
    ]
    session.run(*PYTEST, *files, *session.posargs, env=quick_environment(session) | {"MODULAX_LAWS": "all"})


@nox.session(python=OTHER_PYTHONS)
def compatibility(session: nox.Session) -> None:
    """Part of the tests on other Pythons; arguments after `--` go to pytest.

    3.11 takes the constraints and the libraries that need it, the others take the newest versions. nox reports an
    interpreter that it doesn't find as skipped; with `--error-on-missing-interpreters`, which is the default under
    CI=true, as failed. With pyenv, `PYENV_VERSION=3.11:3.12:3.14 nox -s compatibility` finds several.
    """
    is_old = session.python == OLD_PYTHON
    install(session, "libraries" if is_old else "tests", "-e", f".{EVERY_EXTRA}", newest=UNPINNED or not is_old)
    session.run("python", "-c", VERSIONS)
    tests = session.posargs or [f"tests/{name}" for name in (*COMPATIBILITY, *(OLD_LIBRARIES if is_old else ()))]
    session.run(*PYTEST, *tests, env=quick_environment(session))


@nox.session(python=OLD_PYTHON, venv_backend="uv")
def floors(session: nox.Session) -> None:
    """Part of the tests on the lowest versions that pyproject.toml names (uv resolves them)."""
    requirements = nox.project.dependency_groups(PYPROJECT, "floors")
    session.install("--quiet", "--resolution", "lowest-direct", *requirements, "-e", ".")
    session.run("python", "-c", VERSIONS)
    tests = session.posargs or [f"tests/{name}" for name in FLOORS]
    # Old versions of other libraries warn of each other.
    options = ["-W", "ignore::DeprecationWarning", "-k", " and ".join(f"not {name}" for name in NOT_ON_FLOORS)]
    session.run(*PYTEST, *options, *tests, env=quick_environment(session))


@nox.session
def mutants(session: nox.Session) -> None:
    """Change what differs from main, one place at a time, and print what no test notices (`-- --help`)."""
    install(session, "tests", "-e", f".{EVERY_EXTRA}")
    session.run(
        "python",
        "-m",
        "tests.mutation",
        *session.posargs,
        env=quick_environment(session) | {"MODULAX_TEST_CACHE": None},
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation: every block and notebook runs, every warning is an error."""
    install(session, "docs", "-e", f".{EVERY_EXTRA}")
    build_docs(session, *session.posargs)


def build_docs(session: nox.Session, *options: str) -> None:
    # Without MPLBACKEND, pages and notebooks show their figures.
    environment = quick_environment(session) | {"MPLBACKEND": None}
    # Sphinx doesn't write the page of a module again if only the frame around it has changed.
    shutil.rmtree(ROOT / "docs/_build/html/_modules", ignore_errors=True)
    # -a: the search finds a page by its index entries only if the page was written in the same build.
    sphinx = ["sphinx-build", "-a", "-W", "--keep-going", "-j", "auto", "-b", "html", *options]
    session.run(*sphinx, "docs", "docs/_build/html", env=environment)


@nox.session
def pictures(session: nox.Session) -> None:
    """Run every optimizer on the problems of its pictures, and write docs/optimizer_runs.json; takes ten minutes.

    `-- soap kron` runs these again.
    """
    install(session, "docs", "-e", f".{EVERY_EXTRA}")
    session.run("python", "docs/optimizer_runs.py", *session.posargs, env=quick_environment(session))


@nox.session
def site(session: nox.Session) -> None:
    """Open every page of the last build of the documentation in Chromium; arguments after `--` go to pytest."""
    install(session, "site", "-e", f".{EVERY_EXTRA}")
    browser = chromium(session)
    if not (ROOT / "docs/_build/html/index.html").exists():
        build_docs(session)
    # In one process: the tests share the browser.
    pytest = ("python", "-m", "pytest", "-n", "0", "tests/site", *session.posargs)
    session.run(*pytest, env=ENVIRONMENT | {"MODULAX_CHROMIUM": browser})


def chromium(session: nox.Session) -> str:
    """The path of a Chromium: the one named by MODULAX_CHROMIUM, one on PATH, or one that is installed here."""
    find = ["python", "-m", "tests.site.chromium"]
    apt = shutil.which("apt-get") and getattr(os, "geteuid", lambda: 1)() == 0
    # Playwright's own is not on the package index; where only package registries can be reached, apt-get has one.
    attempts = [["playwright", "install", "chromium"]]
    attempts += [["apt-get", "update"], ["apt-get", "install", "--yes", "chromium"]] if apt else []
    for attempt in [[], *attempts]:
        if attempt:
            session.run(*attempt, external=attempt[0] == "apt-get", success_codes=range(256))
        if path := str(session.run(*find, silent=True, success_codes=(0, 1), log=False)).strip():
            return path
    session.error(
        "there is no Chromium: install one with your package manager or with `playwright install chromium`, "
        "or set MODULAX_CHROMIUM to the path of a Chromium or Chrome"
    )


@nox.session
def examples(session: nox.Session) -> None:
    """Run every script of examples/ that is not marked slow (`-- --slow` runs those as well)."""
    install(session, "examples", "-e", f".{EVERY_EXTRA}")
    scripts = sorted((ROOT / "examples").glob("*.py"))
    if not scripts:
        session.error("there is no script in examples/")
    session.chdir(session.create_tmp())  # what a script writes does not litter the repository
    for script in scripts:
        if SLOW in script.read_text(encoding="utf-8")[:1000] and "--slow" not in session.posargs:
            session.log(f"{script.name} is marked slow: skipped")
        else:
            session.run("python", str(script), env=ENVIRONMENT)


@nox.session
def demo(session: nox.Session) -> None:
    """Train, sweep, plot, save and restore on scikit-learn's digits, in under two minutes."""
    install(session, "examples", "-e", f".{EVERY_EXTRA}")
    session.run("python", "examples/digits.py", *session.posargs, env=ENVIRONMENT)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Measure against optax and write benchmarks/RESULTS.md (`-- --quick`: does it run?)."""
    install(session, "benchmarks", "-e", f".{EVERY_EXTRA}")
    is_quick = "--quick" in session.posargs
    environment = quick_environment(session) if is_quick else ENVIRONMENT
    session.run("python", "benchmarks/run.py", *session.posargs, env=environment)
    if is_quick:
        session.run("python", "benchmarks/device_steps.py", "--quick", env=environment)
        session.run("python", "benchmarks/device_matrices.py", "--quick", env=environment)


@nox.session
def optimizers(session: nox.Session) -> None:
    """Compare 14 optimizers on four small trainings, and write benchmarks/OPTIMIZERS.md; takes hours on two cores.

    `-- --folder runs` goes on after an interruption, `-- --only gpt` makes one training again, `-- --quick` tries two.
    `-- --steps` only counts the steps to AdamW's loss again.
    """
    install(session, "benchmarks", "-e", f".{EVERY_EXTRA}")
    # The threads of OpenBLAS wait for each other, which takes most of the time if other programs use the cores.
    environment = ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "1"}
    session.run("python", "benchmarks/optimizers.py", *session.posargs, env=environment)


@nox.session
def accelerators(session: nox.Session) -> None:
    """Compile steps for TPU and GPU, without either; a row over its bound fails.

    Writes benchmarks/ACCELERATORS.md. `-- --quick` compiles one matrix for one device of each kind and writes nothing.
    """
    install(session, "accelerators", "-e", ".[planning]")
    # The plugin of JAX looks for a GPU, and reports that there is none.
    environment = ENVIRONMENT | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    session.run("python", "-m", "pytest", "-n", "0", "tests/accelerators", env=environment)
    session.run("python", "benchmarks/accelerators.py", *session.posargs, env=environment)


@nox.session(python=[OLD_PYTHON, MAIN_PYTHON], venv_backend="uv")
def build(session: nox.Session) -> None:
    """Build wheel and sdist in dist/, and run the README from each, in empty environments with new and old versions."""
    session.install("--quiet", "build>=1.2")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist), str(ROOT))
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")

    temporary = Path(session.create_tmp()).resolve()
    session.chdir(temporary)  # so that nothing is imported from the checkout
    bare = temporary / "bare"
    python = str(bare / ("Scripts" if os.name == "nt" else "bin") / "python")
    core, extra = PYPROJECT["project"]["dependencies"], PYPROJECT["project"]["optional-dependencies"]
    lowest = ("--resolution", "lowest-direct", *core)
    rows = [(wheel, "", ()), (sdist, "[nnx,orbax]", ()), (wheel, "[nnx,orbax]", ())]
    if session.python == OLD_PYTHON:  # NumPy 2.0 has no wheels for newer ones
        rows += [(wheel, "", lowest), (wheel, "[nnx,orbax]", (*lowest, *extra["nnx"], *extra["orbax"]))]
    for package, extras, options in rows:
        session.run("uv", "venv", "--quiet", "--clear", "--python", str(Path(session.bin) / "python"), str(bare))
        modulax = f"modulax{extras} @ {package.as_uri()}"
        session.run("uv", "pip", "install", "--quiet", "--python", python, modulax, *options)
        session.run(python, "-I", "-c", SMOKE, extras, external=True, env=ENVIRONMENT)
        session.run(python, "-I", "-c", README, str(ROOT / "README.md"), external=True, env=ENVIRONMENT)


VERSIONS = """
import importlib.metadata, platform
packages = ("jax", "equinox", "optree", "numpy", "flax", "optax", "orbax-checkpoint", "chex")
versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
print("Python", platform.python_version(), "with", ", ".join(versions))
"""
SMOKE = """
import importlib.metadata, importlib.resources, sys
import modulax
from modulax import *
root = importlib.resources.files("modulax")
assert "site-packages" in str(root), root
assert (root / "py.typed").is_file(), "py.typed is missing from the wheel"
extras = {"flax", "orbax", "optax", "matplotlib", "chex", "optuna", "tqdm"} & set(sys.modules)
assert not extras, f"the bare import pulls in {extras}"
versions = [f"{name} {importlib.metadata.version(name)}" for name in ("modulax", "jax", "equinox", "numpy")]
print("Python", sys.version.split()[0], "imports", ", ".join(versions), "with", sys.argv[1] or "no extras")
"""
README = """
import importlib.util, pathlib, re, sys
blocks = re.findall("^```python\\n(.*?)^```", pathlib.Path(sys.argv[1]).read_text("utf-8"), re.MULTILINE | re.DOTALL)
run = [block for block in blocks if importlib.util.find_spec("flax") or "flax" not in block]
namespace = {"__name__": "__main__"}
for block in run:
    exec(block, namespace)
print("README:", len(run), "of", len(blocks), "blocks run")
assert len(run) >= 2
"""

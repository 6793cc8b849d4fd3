"""The files that GitHub, Read the Docs, PyPI and citation managers read, against the project that they describe."""

import ast
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import modulax

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"))
PRE_COMMIT = ROOT / ".pre-commit-config.yaml"
READ_THE_DOCS = ROOT / ".readthedocs.yaml"
# Files that name sessions of nox.
COMMANDS = (
    *WORKFLOWS,
    READ_THE_DOCS,
    PRE_COMMIT,
    ROOT / ".ci/run",
    ROOT / ".github/pull_request_template.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "README.md",
)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def load(path: Path) -> Any:
    return yaml.safe_load(read(path))


def sessions() -> dict[str, ast.FunctionDef]:
    """The functions of noxfile.py that are decorated as sessions. nox itself is not needed for the tests."""
    functions = (node for node in ast.parse(read(ROOT / "noxfile.py")).body if isinstance(node, ast.FunctionDef))
    return {f.name: f for f in functions if any("nox.session" in ast.unparse(d) for d in f.decorator_list)}


def pins() -> dict[str, str]:
    """The version of each package on the newest Python."""
    lines = [line for line in read(ROOT / ".ci/constraints.txt").splitlines() if "==" in line]
    old_first = sorted(lines, key=lambda line: not line.endswith('< "3.12"'))
    return dict(line.partition(";")[0].split("==") for line in old_first)


def other_pythons() -> list[str]:
    (value,) = re.findall(r"^OTHER_PYTHONS = (\[.*\])$", read(ROOT / "noxfile.py"), re.MULTILINE)
    return ast.literal_eval(value)


@pytest.mark.parametrize("file", COMMANDS, ids=lambda file: file.name)
def test_sessions_that_are_named_exist(file: Path):
    named = re.findall(r"(?:nox -s|dev\.py)((?: [a-z_]+(?![\w.=]))+)", read(file))
    unknown = {name for names in named for name in names.split()} - {*sessions()}
    assert not unknown, f"noxfile.py has no session {unknown}"


def test_every_session_is_in_the_table_of_contributing():
    table = re.findall(r"^\| `nox -s (\w+)` \|", read(ROOT / "CONTRIBUTING.md"), re.MULTILINE)
    assert sorted(table) == sorted(sessions())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows(file: Path):
    workflow = load(file)
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow, "YAML reads the key `on` as True"
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            # A tag can be moved to other code, a commit can't.
            assert re.search(r"@[0-9a-f]{40}$", step["uses"]) if "uses" in step else step["run"]
            program = step.get("run", "").split(" ")[0]
            assert not program.startswith(".") or os.access(ROOT / program, os.X_OK)


def test_ci_runs_the_supported_pythons():
    jobs = load(ROOT / ".github/workflows/ci.yml")["jobs"]
    oldest, main = jobs["checks"]["steps"][1]["with"]["python-version"].split()
    assert PROJECT["requires-python"] == f">={oldest}"
    assert f'for version in ("{main}", ' in read(ROOT / "dev.py")
    others = jobs["compatibility"]["strategy"]["matrix"]["include"]
    pairs = [(job["session"], job["python"]) for job in others]
    wanted = [(f"compatibility-{python}", python) for python in other_pythons()]
    assert pairs == [*wanted, ("thorough", oldest), ("tests", main), ("tests", main)]
    assert load(READ_THE_DOCS)["build"]["tools"]["python"] == main
    named = {line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if " :: 3." in line}
    assert named == {main, *other_pythons()}


def test_ci_runs_the_sessions_of_its_script():
    """Without the part of the tests on the old Python, which is a job of its own."""
    script = read(ROOT / ".ci/run")
    (listed,) = re.findall(r"^sessions=\((.*?)^\)", script, re.MULTILINE | re.DOTALL)
    named = [*re.findall(r"^run (\w+)", script, re.MULTILINE), *shlex.split(listed)]
    jobs = load(ROOT / ".github/workflows/ci.yml")["jobs"]
    of_checks = jobs["checks"]["strategy"]["matrix"]["session"]
    assert sorted([*of_checks, f"compatibility-{other_pythons()[0]}"]) == sorted(named)
    assert {session for job in of_checks for session in job.partition(" -- ")[0].split()} <= sessions().keys()


def test_releases():
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    # The shell command that compares the tag with the version expects this line.
    assert f'version = "{PROJECT["version"]}"' in read(ROOT / "pyproject.toml").splitlines()
    headings = re.findall(r"^## \[(.+?)\]", read(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", PROJECT["version"]]


def test_citation():
    citation = load(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # the required keys
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])
    assert (citation["license"], citation["abstract"]) == (PROJECT["license"], PROJECT["description"])
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert citation["url"] == PROJECT["urls"]["Documentation"]


def test_the_recipe_for_conda():
    """Its version and its requirements are those of the project."""
    recipe = read(ROOT / "recipe/meta.yaml")
    assert f'{{% set version = "{PROJECT["version"]}" %}}' in recipe
    run = recipe[recipe.index("  run:") : recipe.index("  run_constrained:")]
    listed = {name.replace("_", "-"): bound for name, bound in re.findall(r"- (\S+) >=([\d.]+)", run)}
    assert listed == dict(line.split(">=") for line in PROJECT["dependencies"])


def test_addresses():
    urls = PROJECT["urls"]
    assert list(urls) == ["Documentation", "Source", "Discussions", "Issues", "Changelog"]
    assert (ROOT / urls["Changelog"].removeprefix(f"{urls['Source']}/blob/main/")).is_file()
    assert urls["Issues"] == f"{urls['Source']}/issues"
    addresses = [link["url"] for link in load(ROOT / ".github/ISSUE_TEMPLATE/config.yml")["contact_links"]]
    assert all(address.startswith((urls["Documentation"], urls["Source"])) for address in addresses)


def test_forms_for_issues():
    assert [form.stem for form in FORMS] == ["bug_report", "feature_request"]
    for form in map(load, FORMS):
        assert {"name", "description", "body"} <= set(form)
        assert len({field["id"] for field in form["body"]}) == len(form["body"])
        assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])
    assert "modulax.show_versions()" in read(FORMS[0])
    assert callable(modulax.show_versions)


def test_pre_commit_runs_the_ruff_of_the_lint_session():
    (repository,) = load(PRE_COMMIT)["repos"]
    assert repository["rev"] == f"v{pins()['ruff']}"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]


def test_every_requirement_of_the_checks_is_pinned():
    groups = (group for name, group in PYPROJECT["dependency-groups"].items() if name != "dev")
    named = {re.split(r"[\[>=<]", line)[0] for group in groups for line in group if isinstance(line, str)}
    assert sorted(named - {*pins()}) == ["nox", "tqdm"]  # whose versions don't change a result

"""Compare the errors that pyright and mypy report, line by line, with the comments in the scripts.

A wrong line ends with `# wrong: <rule of pyright>, <code of mypy>`, with `-` for a checker that can't know. The
scripts of `right` are also run, so that nothing is called right that raises an error. A script that calls every class
without its required arguments is written first; git ignores it.
"""

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from ..generated import missing_arguments

HERE = Path(__file__).parent
Errors = set[tuple[str, int, str]]


def expected() -> tuple[Errors, Errors]:
    """What the comments expect of pyright, and of mypy."""
    found: tuple[Errors, Errors] = (set(), set())
    for file in sorted(HERE.glob("wrong/*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if comment := re.search(r"# wrong: (\S+), (\S+)$", line):
                for errors, rule in zip(found, comment.groups(), strict=True):
                    if rule != "-":
                        errors.add((f"wrong/{file.name}", number, rule))
            elif "# wrong" in line:
                raise SystemExit(f"{file.name}:{number}: write `# wrong: <rule of pyright>, <code of mypy>`")
    return found


def pyright() -> Errors:
    """What pyright reports with its default settings."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    reports = json.loads(done.stdout)["generalDiagnostics"]
    errors = [x for x in reports if x["severity"] == "error"]
    return {(_name(x["file"]), x["range"]["start"]["line"] + 1, x.get("rule", "syntax")) for x in errors}


def mypy() -> Errors:
    """What mypy reports with its default settings, and bodies of functions without annotations checked too."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = [str(file) for file in sorted(HERE.glob("*/*.py"))]
        options = ["--config-file", os.devnull, "--cache-dir", folder, "--check-untyped-defs", "--no-error-summary"]
        options.append("--ignore-missing-imports")  # optax has no types
        options.append("--follow-imports=silent")  # only errors in the scripts, as where modulax is installed
        command = [sys.executable, "-m", "mypy", "--namespace-packages", "--scripts-are-modules", *options]
        done = subprocess.run([*command, *scripts], capture_output=True, text=True, encoding="utf-8", cwd=HERE)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    lines = re.findall(r"^(.+?):(\d+): error: .* \[([\w-]+)\]$", done.stdout, re.MULTILINE)
    return {(_name(file), int(number), code) for file, number, code in lines}


def _name(file: str) -> str:
    path = (HERE / file).resolve()
    return path.relative_to(HERE.resolve()).as_posix() if path.is_relative_to(HERE.resolve()) else str(path)


def main() -> None:
    """Exit with 1, and a line for each difference, unless both checkers report what the comments say."""
    (HERE / "wrong" / "missing_arguments.py").write_text(missing_arguments(), encoding="utf-8")
    differences = []
    for checker, wanted in zip((pyright, mypy), expected(), strict=True):
        found = checker()
        for mark, errors in (("reports", found - wanted), ("misses", wanted - found)):
            differences += [f"{file}:{line}: {checker.__name__} {mark} {rule}" for file, line, rule in sorted(errors)]
        print(f"{checker.__name__}: {len(found)} errors in wrong lines of scripts")
    scripts = sorted(HERE.glob("right/*.py"))
    for script in scripts:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    print(f"{len(scripts)} right scripts run")
    print("\n".join(differences))
    raise SystemExit(bool(differences))


if __name__ == "__main__":
    main()

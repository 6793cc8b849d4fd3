"""A copy of the sources in which one fault at a time is planted."""

import ast
import fnmatch
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ._mutant import PACKAGE, ROOT, Mutant

TIME_LIMIT = 300  # seconds of computation; a loop that does not end is a fault that was noticed
FAILED = (1, 2)  # of pytest: a test failed, or could not be imported
ALREADY_IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # by the server, of plugins


def settings() -> dict[str, Any]:
    """How `nox -s tests` runs pytest: the constants of `noxfile.py`, which imports what is not installed here."""
    names = ("ENVIRONMENT", "NUMBERS", "QUICK_COMPILER")
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    assignments = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in names]
    found: dict[str, Any] = {"os": os}
    exec(compile(ast.Module(list(assignments), []), "noxfile.py", "exec"), found)
    return {name: found[name] for name in names}


class Workshop:
    """A copy of the sources, and a process that runs pytest on it.

    Args:
        folder: where the copy lives, together with the programs that were compiled for it.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._package = folder / "src" / "modulax"
        shutil.copytree(PACKAGE, self._package, ignore=shutil.ignore_patterns("__pycache__"))
        self._settings = settings()
        self._server = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}._server"],
            cwd=ROOT,
            env=os.environ | self._settings["ENVIRONMENT"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def run(self, selection: str, *options: str) -> tuple[int, str]:
        """The exit status of pytest and what it prints, with the code generator that `nox -s tests` uses."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        arguments = shlex.split(selection)
        files = {Path(x.partition("::")[0]).name for x in arguments if ".py" in x}
        needs_users_compiler = any(fnmatch.fnmatch(file, p) for file in files for p in self._settings["NUMBERS"])
        sources, log = str(self._package.parent), self._folder / "log"
        environment = {"PYTHONPATH": sources, "MODULAX_TEST_CACHE": str(self._folder / "programs")}
        request = {
            "arguments": ["-q", "-p", "no:cacheprovider", "-n", "0", *ALREADY_IMPORTED, *options, *arguments],
            "environment": environment | ({} if needs_users_compiler else self._settings["QUICK_COMPILER"]),
            "sources": sources,
            "log": str(log),
            "limit": TIME_LIMIT,
        }
        status = -1
        for _ in range(2):
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            status = int(self._server.stdout.readline())
            if status >= 0:  # else a signal ended the process, as where memory was short
                break
        return status, log.read_text(encoding="utf-8")

    def is_killed(self, mutant: Mutant) -> tuple[bool, str]:
        """Whether one of the tests that matter fails with the fault in place, and which, or why it could not be run."""
        path = self._package / mutant.file
        source = path.read_text(encoding="utf-8")
        self._write(path, mutant.mutated(source))
        try:
            for selection in mutant.tests:
                status, output = self.run(selection, "-x")
                if status in FAILED:
                    return True, _first_failure(output)
                if status != 0:
                    return False, f"`pytest {selection}` ends with status {status}:\n{output[-2000:]}"
            return False, ""
        finally:
            self._write(path, source)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Bytecode is taken for fresh if its source has the time and the size that it had.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


def _first_failure(output: str) -> str:
    """The test that failed, as pytest names it in its last lines."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].removeprefix("FAILED ").partition(" - ")[0] if lines else output[-300:].strip()

"""Plugin of pytest: appends the id and the outcome of every test to the file that `MODULAX_OUTCOMES` names."""

import os
from pathlib import Path
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        with Path(os.environ["MODULAX_OUTCOMES"]).open("a") as file:
            file.write(f"{report.outcome} {report.nodeid}\n")

"""Plugin of pytest: appends the id and the outcome of every test to the file that `MODULAX_OUTCOMES` names.

A part of a test (`subTest`) counts only if it fails.
"""

import os
from pathlib import Path
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    is_part = hasattr(report, "context")
    if report.outcome == "failed" or (not is_part and (report.when == "call" or report.outcome == "skipped")):
        with Path(os.environ["MODULAX_OUTCOMES"]).open("a") as file:
            file.write(f"{report.outcome} {report.nodeid}\n")

"""Find a Chromium that Playwright can drive; `python -m tests.site.chromium` prints its path, or exits with 1.

Playwright's own download is not the only one: it is not on the package index, and most systems package a browser.
"""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

VARIABLE = "MODULAX_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = (
    "there is no Chromium. Install one with `playwright install chromium` or with the system's package manager "
    f"(`apt-get install chromium`), or set {VARIABLE} to the path of a Chromium or Chrome."
)


def executable() -> str | None:
    """The path in MODULAX_CHROMIUM, else a browser on PATH, else the one that `playwright install` downloaded."""
    if named := os.environ.get(VARIABLE):
        return named
    on_path = (found for name in NAMES if (found := shutil.which(name)))
    return next(on_path, None) or _of_playwright()


def _of_playwright() -> str | None:
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


if __name__ == "__main__":
    path = executable()
    if path is None:
        sys.exit(1)
    print(path)

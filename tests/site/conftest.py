"""The built site, served on this machine, and a browser; all tests share both."""

import asyncio
from collections.abc import Iterator

import pytest

from . import chromium
from .pages import Site, built_site
from .serve import Chromium, serving


@pytest.fixture(scope="session")
def site() -> Site:
    site = Site(built_site())
    assert site.pages, f"there is no built site in {site.root}: `nox -s docs` builds it"
    return site


@pytest.fixture(scope="session")
def address(site: Site) -> Iterator[str]:
    with serving(site.root) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    executable = chromium.executable()
    assert executable, chromium.MISSING
    with asyncio.Runner() as runner:
        browser = Chromium(runner, executable)
        yield browser
        browser.close()

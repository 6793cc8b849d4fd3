"""axe-core on one page of each kind, contrast in both color schemes among its rules."""

from .pages import Site
from .reporting import expect_none
from .serve import Chromium
from .visits import SCHEMES, accessibility

# One page of each kind. Where a pattern matches several, the first is checked.
KINDS_OF_PAGES = (
    "index.html",
    "choosing_an_optimizer.html",
    "monitoring.html",
    "notebooks/*.html",
    "api/checkpoint.html",
    "api/optimizers/adamw.html",
    "genindex.html",
    "search.html",
)


def test_axe_finds_nothing_serious(site: Site, address: str, browser: Chromium):
    pages = [site.first(pattern) for pattern in KINDS_OF_PAGES]
    findings = browser.run(accessibility, address, pages)
    assert findings.visits == dict.fromkeys(SCHEMES, len(pages))
    expect_none("pages with barriers", findings.report("violations"))

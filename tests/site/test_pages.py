"""Every page of the site, at both widths and in both color schemes, as Chromium shows it; and every link."""

import pytest

from .pages import REPOSITORY, Site
from .reporting import expect_none
from .serve import Chromium
from .visits import SCHEMES, WIDTHS, Findings, visit

KINDS = {
    "scroll": "pages that scroll sideways",
    "foreign": "pages that ask other hosts for files",
    "failed": "pages with requests that fail",
    "errors": "pages with errors in the console",
    "formulas": "pages with formulas that are not typeset",
    "images": "pages with images without content, or without an alternative text",
}


@pytest.fixture(scope="module")
def findings(site: Site, address: str, browser: Chromium) -> Findings:
    return browser.run(visit, address, site.pages)


def test_every_page_was_visited_in_every_view(site: Site, findings: Findings):
    assert findings.visits == {f"{width} {scheme}": len(site.pages) for width in WIDTHS for scheme in SCHEMES}
    assert "index.html" in site.pages


@pytest.mark.parametrize("kind", KINDS)
def test_pages(kind: str, findings: Findings):
    expect_none(KINDS[kind], findings.report(kind))


def test_links_lead_somewhere(site: Site):
    expect_none("broken links", [f"{page}: {link}" for page in site.pages for link in site.broken(page)])


def test_links_to_the_repository_name_files_that_exist(site: Site):
    named = ((page, name) for page in site.pages for name in site.files_of_the_repository(page))
    expect_none(
        "links to files that don't exist",
        [f"{page}: {name}" for page, name in named if not (REPOSITORY / name).exists()],
    )


def test_every_page_can_be_reached_from_the_first(site: Site):
    expect_none("pages to which no path of links leads from the first", site.unreachable())

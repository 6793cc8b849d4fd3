"""The pages of the site, at both widths and in both color schemes, as Chromium shows them; and every link."""

import re
from collections import Counter

import pytest

from .pages import ON_GITHUB, REPOSITORY, Site
from .reporting import expect_none
from .serve import Chromium
from .visits import VIEWS, Findings, visit

KINDS = {
    "scroll": "pages that scroll sideways",
    "foreign": "pages that ask other hosts for files",
    "failed": "pages with requests that fail",
    "errors": "pages with errors in the console",
    "formulas": "pages with formulas that are not typeset",
    "images": "pages with images without content, or without an alternative text",
    "length": "pages of more than 15,000 pixels in a wide window",
}
# Pictures that a page has at least: those of the landing page, and those that its code draws.
PICTURES = {
    "index.html": 1,
    "project/benchmarks.html": 1,
    "estimators.html": 1,
    "schedules.html": 1,
    "sweeps.html": 6,
    "api/schedules.html": 16,
    "api/schedules_combined.html": 4,
    "api/optimizers/adamw.html": 3,
    "notebooks/getting_started.html": 2,
    "notebooks/sweeps.html": 5,
    "notebooks/learning_a_schedule.html": 1,
}
LINKS = 60  # in the side bar
LISTINGS = 12  # the longest ones
# Pages that are not guides: lists of links, records, and generated pages.
NOT_GUIDES = ("genindex", "py-modindex", "search", "index", "api/", "_modules/", "project/")


@pytest.fixture(scope="module")
def opened(site: Site) -> list[str]:
    """The pages that are opened: all but most listings of modules, which viewcode makes of one template."""
    listings = [page for page in site.pages if page.startswith("_modules/")]
    longest = sorted(listings, key=lambda page: (site.root / page).stat().st_size)[-LISTINGS:]
    return sorted({*site.pages} - {*listings} | {*longest})


@pytest.fixture(scope="module")
def findings(opened: list[str], address: str, browser: Chromium) -> Findings:
    return browser.run(visit, address, opened)


def test_every_page_was_visited_in_every_view(opened: list[str], findings: Findings):
    assert findings.visits == {f"{width} {scheme}": len(opened) for width, scheme in VIEWS}
    assert {"index.html", "api/optimizers/adamw.html"} < {*opened}


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


def test_the_side_bar_is_short(site: Site):
    texts = {page: (site.root / page).read_text(encoding="utf-8") for page in site.pages}
    bars = {page: text.partition('class="sidebar-drawer"')[2].partition("</aside>")[0] for page, text in texts.items()}
    counts = {page: bar.count("<a ") for page, bar in bars.items()}
    expect_none("pages without a side bar", [page for page, count in counts.items() if count < 10])
    expect_none("pages with a long side bar", [f"{p}: {count}" for p, count in counts.items() if count > LINKS])


def test_pages_have_their_pictures(site: Site):
    counts = {page: sum("_images/" in target for target in site.links(page).targets) for page in PICTURES}
    expect_none("pages without their pictures", [page for page in PICTURES if counts[page] < PICTURES[page]])


def test_guides_link_to_the_reference(site: Site):
    guides = [page for page in site.pages if not page.startswith(NOT_GUIDES)]
    assert len(guides) > 30
    # The navigation links to pages, and a name in the text to an anchor.
    linked = {page for page in guides if any("api/" in target and "#" in target for target in site.links(page).targets)}
    expect_none("guides without a link to the reference", [page for page in guides if page not in linked])


def test_titles_are_distinct(site: Site):
    pages = [page for page in site.pages if not page.startswith("_modules/")]
    texts = [(site.root / page).read_text(encoding="utf-8") for page in pages]
    titles = Counter(re.findall(r"<title>(.*?)</title>", text, re.DOTALL)[0] for text in texts)
    expect_none("titles of several pages", [title for title, count in titles.items() if count > 1])


def test_the_head_of_a_page(site: Site):
    """A description for search engines, an icon, and a link to the repository, on every page but lists of names."""
    lists = ("genindex", "py-modindex", "search", "_modules/")
    described = [page for page in site.pages if not page.startswith(lists)]
    texts = {page: (site.root / page).read_text(encoding="utf-8") for page in described}
    for what in ('name="description"', 'rel="shortcut icon"'):
        expect_none(f"pages without {what}", [page for page, text in texts.items() if what not in text])
    home = ON_GITHUB.rstrip("/")
    linked = [page for page in site.pages if home in site.links(page).targets]
    expect_none("pages without a link to the repository", sorted(set(site.pages) - set(linked)))
    sources = [page for page in described if f"{ON_GITHUB}blob/main/" in texts[page]]
    generated = [page for page in described if page.count("/") == 2]
    expect_none("pages without a link to their source", sorted(set(described) - set(sources) - set(generated)))

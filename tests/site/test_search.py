"""The search of the site, asked in the words of users.

`queries.tsv` lists what they type, and the pages of which one must be among the first hits, and mostly the first.
"""

import re
from pathlib import Path

import pytest

from .pages import Site
from .reporting import expect_none
from .serve import Chromium
from .visits import ranking, search

LINES = Path(__file__).with_name("queries.tsv").read_text(encoding="utf-8").splitlines()[1:]
QUERIES = {query: pages.split(", ") for query, pages in (line.split("\t") for line in LINES)}
# Pages that have the query in the middle of a word, of `PSGD`, `IndividualOutputs` and `AdaHessian`.
WITHIN_A_WORD = {
    "SGD": "choosing_an_optimizer",
    "TPU": "api/microbatching",
    "hessian": "choosing_an_optimizer",
}
HITS = 3
RECORDS = ("project/", "design", "differences_from_optax", "released_code")


def test_pages_of_the_table_exist(site: Site):
    lost = [query for query, pages in QUERIES.items() if not any(f"{page}.html" in site.pages for page in pages)]
    expect_none("queries have no page in the table that exists", lost)


@pytest.fixture(scope="module")
def classes(site: Site) -> dict[str, str]:
    """The names of the classes that have a page."""
    pages = [page for page in site.pages if page.startswith("api/") and page.count("/") == 2]
    texts = [(site.root / page).read_text(encoding="utf-8") for page in pages]
    found = {re.findall(r"<h1>(\w+)<", text)[0]: page for text, page in zip(texts, pages, strict=True)}
    assert len(found) > 200
    return found


@pytest.fixture(scope="module")
def hits(classes: dict[str, str], address: str, browser: Chromium) -> dict[str, list[str]]:
    return browser.run(ranking, address, dict.fromkeys([*QUERIES, *classes]))


@pytest.mark.parametrize("query", ["learning rate warmup", "AdamW"])
def test_the_search_page_shows_the_hits(query: str, hits: dict[str, list[str]], address: str, browser: Chromium):
    assert browser.run(search, address, query) == hits[query]


def test_search_finds_the_page(hits: dict[str, list[str]]):
    expect_none(f"of {len(QUERIES)} queries miss the page", missed(hits, HITS))


def test_search_finds_the_page_first(hits: dict[str, list[str]]):
    late = missed(hits, 1)
    assert len(late) <= len(QUERIES) // 10, late


def test_the_name_of_a_class_finds_its_page_first(classes: dict[str, str], hits: dict[str, list[str]]):
    late = [f"{name}: {hits[name][:HITS]}" for name, page in classes.items() if not hits[name][0].startswith(page)]
    expect_none("names of classes find something else first", late)


def test_no_page_is_listed_twice(hits: dict[str, list[str]]):
    pages = {query: [hit.partition("#")[0] for hit in found] for query, found in hits.items()}
    expect_none("queries list a page twice", [query for query, found in pages.items() if len(found) > len({*found})])


def missed(hits: dict[str, list[str]], n: int) -> list[str]:
    """The queries whose page is not among the first `n` hits."""
    found = []
    for query, pages in QUERIES.items():
        best = [hit.partition(".html")[0] for hit in hits[query][:n]]
        if not set(pages) & set(best):
            found.append(f"{query!r}: not {' or '.join(pages)}, but {best}, of {len(hits[query])} hits")
    return found


def test_words_come_before_parts_of_words(hits: dict[str, list[str]]):
    parts = [query for query, page in WITHIN_A_WORD.items() if hits[query][0].startswith(f"{page}.html")]
    assert not parts, {query: hits[query][:HITS] for query in parts}


def test_records_of_the_project_come_last(hits: dict[str, list[str]]):
    others = [query for query, pages in QUERIES.items() if not pages[0].startswith(RECORDS)]
    is_record = {query: [hit.startswith(RECORDS) for hit in hits[query]] for query in others}
    early = {query: hits[query][:HITS] for query, found in is_record.items() if found[:HITS] != sorted(found)[:HITS]}
    assert not early, early


def test_hits_lead_somewhere(site: Site, hits: dict[str, list[str]]):
    links = {link for found in hits.values() for link in found}
    expect_none("hits of a search lead nowhere", sorted(link for link in links if site.why_broken("search.html", link)))

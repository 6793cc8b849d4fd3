"""The search of the site, asked in the words of users."""

from .pages import Site
from .queries import QUERIES
from .reporting import expect_none
from .serve import Chromium
from .visits import search

HITS = 5


def test_pages_of_the_table_exist(site: Site):
    named = {page for pages in QUERIES.values() for page in pages}
    expect_none("pages in the table of queries don't exist", sorted(p for p in named if f"{p}.html" not in site.pages))


def test_search_finds_the_page(address: str, browser: Chromium):
    hits = browser.run(search, address, list(QUERIES))
    missed = []
    for query, pages in QUERIES.items():
        best = [hit.removesuffix(".html") for hit in hits[query][:HITS]]
        if not set(pages) & set(best):
            missed.append(f"{query!r}: not {' or '.join(pages)}, but {best}, of {len(hits[query])} hits")
    expect_none(f"of {len(QUERIES)} queries miss the page", missed)

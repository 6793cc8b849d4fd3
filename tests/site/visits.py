"""What Chromium finds on each page, as text to report."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
# What depends on the width does not depend on the colors, so two views see as much as all four.
VIEWS: tuple[tuple[int, Scheme], ...] = ((1280, "light"), (390, "dark"))
HEIGHT = 900
# Two tabs keep two cores busy; more only make pages wait for each other.
TABS = 2
INSPECT = (Path(__file__).parent / "inspect.js").read_text(encoding="utf-8")
# The search page reads the query out of its address, and takes the hits from the end.
RANK = """(queries) => Object.fromEntries(queries.map((query) => {
  history.replaceState(null, "", `?q=${encodeURIComponent(query)}`);
  const hits = Search._performSearch(...Search._parseQuery(query)).reverse();
  return [query, hits.map(([page, , anchor]) => `${page}.html${anchor}`)];
}))"""
# The rules of WCAG that most readers depend on, contrast among them.
AXE_OPTIONS = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa"]}, "resultTypes": ["violations"]}
SHOWN = 3  # findings of one page
SEVERE = ("serious", "critical")


@dataclass
class Findings:
    """Descriptions of what is wrong, per kind and page, and in which views of the page each one was found."""

    kinds: dict[str, dict[str, dict[str, list[str]]]] = field(default_factory=dict)
    visits: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, page: str, view: str, texts: Iterable[str]) -> None:
        for text in dict.fromkeys(texts):
            self.kinds.setdefault(kind, {}).setdefault(page, {}).setdefault(text, []).append(view)

    def report(self, kind: str) -> list[str]:
        """One line per page: the first findings, with the views where not all of them have it."""
        return [f"{page}: {self._line(texts)}" for page, texts in sorted(self.kinds.get(kind, {}).items())]

    def _line(self, texts: dict[str, list[str]]) -> str:
        lines = [
            text if len(views) == len(self.visits) else f"{text} ({', '.join(views)})" for text, views in texts.items()
        ]
        return " | ".join(lines[:SHOWN]) + (f" | and {len(lines) - SHOWN} more" if len(lines) > SHOWN else "")


class Watch:
    """The requests and the console of one tab, while one page is open in it."""

    def __init__(self, tab: Page, host: str):
        self.host = host
        self.found: dict[str, list[str]] = {"foreign": [], "failed": [], "errors": []}
        tab.on("request", self._request)
        tab.on("requestfailed", self._failure)
        tab.on("response", self._response)
        tab.on("console", self._message)
        tab.on("pageerror", lambda error: self.found["errors"].append(str(error)))

    def taken(self) -> dict[str, list[str]]:
        """What was found since the last call."""
        found, self.found = self.found, {kind: [] for kind in self.found}
        return found

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob", "about") and address.netloc != self.host:
            self.found["foreign"].append(_short(request.url))

    def _failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left while its icon was loaded
            self.found["failed"].append(f"{_short(request.url)}: {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.found["failed"].append(f"{_short(response.url)}: {response.status}")

    def _message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.found["errors"].append(f"{message.text} ({_short(message.location['url'])})")


def _short(url: str) -> str:
    return url if len(url) <= 120 else url[:117] + "…"


async def in_tabs(
    browser: Browser, jobs: Iterable[Any], do: Callable[[Page, Any], Awaitable[None]], **options: Any
) -> None:
    """Do every job in one of a few tabs, which share a context and its cache."""
    context: BrowserContext = await browser.new_context(**options)
    queue = iter(list(jobs))

    async def work() -> None:
        tab = await context.new_page()
        for job in queue:
            await do(tab, job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(TABS):
                group.create_task(work())
    finally:
        await context.close()


async def visit(browser: Browser, address: str, pages: list[str]) -> Findings:
    """Open every page once, and look at it in each view: loading a page takes ten times as long as looking at it."""
    findings = Findings()
    watches: dict[Page, Watch] = {}

    async def look(tab: Page, page: str) -> None:
        watch = watches.get(tab) or watches.setdefault(tab, Watch(tab, urlsplit(address).netloc))
        watch.taken()
        for width, scheme in VIEWS:
            view = f"{width} {scheme}"
            await tab.set_viewport_size({"width": width, "height": HEIGHT})
            await tab.emulate_media(color_scheme=scheme)
            if (width, scheme) == VIEWS[0]:
                await tab.goto(f"{address}/{page}", wait_until="load")
            found = await tab.evaluate(INSPECT)
            findings.visits[view] += 1
            for kind, texts in [*found.items(), *watch.taken().items()]:
                findings.add(kind, page, view, texts)

    await in_tabs(browser, pages, look)
    return findings


async def search(browser: Browser, address: str, query: str) -> list[str]:
    """What the search page shows for a query: the addresses of its hits, best first."""
    hits: list[str] = []

    async def ask(tab: Page, query: str) -> None:
        await tab.goto(f"{address}/search.html?q={quote(query)}", wait_until="load")
        # The summary is written when all hits are listed.
        await tab.wait_for_function("document.querySelector('.search-summary')?.innerText.length > 0", timeout=30_000)
        links = await tab.locator("#search-results li a").evaluate_all("links => links.map(link => link.href)")
        hits.extend(link.removeprefix(f"{address}/") for link in links)

    await in_tabs(browser, [query], ask)
    return hits


async def ranking(browser: Browser, address: str, queries: Iterable[str]) -> dict[str, list[str]]:
    """The hits of each query, best first; one page computes all of them, and lists none."""
    hits: dict[str, list[str]] = {}

    async def ask(tab: Page, queries: list[str]) -> None:
        await tab.goto(f"{address}/search.html", wait_until="load")
        hits.update(await tab.evaluate(RANK, queries))

    await in_tabs(browser, [list(queries)], ask)
    return hits


async def accessibility(browser: Browser, address: str, pages: Iterable[str]) -> Findings:
    """The serious and critical violations that axe-core finds, in both color schemes."""
    findings = Findings()

    async def check(tab: Page, job: tuple[str, Scheme]) -> None:
        page, scheme = job
        await tab.emulate_media(color_scheme=scheme)
        await tab.goto(f"{address}/{page}", wait_until="load")
        await tab.evaluate(INSPECT)  # returns when the formulas are typeset
        results = await Axe().run(tab, options=AXE_OPTIONS)
        for violation in results.response["violations"]:
            if violation["impact"] in SEVERE:
                nodes = violation["nodes"]
                element = " ".join(map(str, nodes[0]["target"]))
                text = f"{violation['id']} in {len(nodes)} elements, the first `{element}`: {_why(nodes[0])}"
                findings.add("violations", page, scheme, [text])
        findings.visits[scheme] += 1

    await in_tabs(browser, [(page, scheme) for page in pages for scheme in SCHEMES], check)
    return findings


def _why(node: dict[str, Any]) -> str:
    checks = [*node["any"], *node["all"], *node["none"]]
    return checks[0]["message"] if checks else ""

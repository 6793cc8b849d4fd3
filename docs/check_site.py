"""Cheap checks of the built site: `python docs/check_site.py docs/_build/html`.

Every page has what it needs in the site itself, the pictures are there, guides link to the reference, and the code fits
into its column.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
STYLE_URL = re.compile(r"""(?:url\(|@import\s+)\s*["']?((?:https?:)?//[^"')\s]+)""")
WIDTH = 88
# Pictures that the site has at least: of the landing page, and of the pages whose code draws.
PICTURES = {"index.html": 2, "estimators.html": 1, "schedules.html": 1, "notebooks/getting_started.html": 2}
PICTURES |= {"sweeps.html": 6, "notebooks/sweeps.html": 5, "notebooks/learning_a_schedule.html": 1}
# Pages that are not guides: lists of links, records, and generated pages.
NOT_GUIDES = ("genindex", "py-modindex", "search", "index", "api/", "_modules/", "project/")


class Page(NamedTuple):
    name: str
    loads: list[str]  # what the browser fetches to show the page
    pictures: list[str]
    links: list[str]
    ids: set[str]
    code: list[str]
    has_formulas: bool
    title: str


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.pictures: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.code: list[str] = []
        self.depth = 0  # of <div class="highlight-python">
        self.is_article = False
        self.title = ""
        self.is_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADED and values.get(LOADED[tag]):
            self.loads.append(values[LOADED[tag]])
        if tag == "link" and set(values.get("rel", "").split()) & {"stylesheet", "icon", "preload", "modulepreload"}:
            self.loads.append(values["href"])
        self.ids |= {values["id"]} if "id" in values else set()
        self.is_article |= tag == "article"
        self.is_title |= tag == "title" and not self.title  # a picture in SVG has titles too
        if self.is_article and tag == "img":
            self.pictures.append(values["src"])
        if self.is_article and tag == "a" and "href" in values and "headerlink" not in values.get("class", ""):
            self.links.append(values["href"])
        if tag == "div":
            classes = values.get("class", "")
            self.depth += bool(self.depth) or ("highlight-python" in classes or "highlight-ipython" in classes)
            if self.depth == 1:
                self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        self.is_article &= tag != "article"
        self.is_title &= tag != "title"
        if tag == "div" and self.depth:
            self.depth -= 1

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.code[-1] += data
        if self.is_title:
            self.title += data


def read(site: Path) -> Iterator[Page]:
    for file in sorted(site.rglob("*.html")):
        if "_static" in file.relative_to(site).parts:
            continue
        text = file.read_text(encoding="utf-8")
        reader = Reader()
        reader.feed(text)
        name = file.relative_to(site).as_posix()
        loads = reader.loads + STYLE_URL.findall(text)
        has_formulas = 'class="math' in text
        yield Page(name, loads, reader.pictures, reader.links, reader.ids, reader.code, has_formulas, reader.title)


def problems(site: Path) -> Iterator[str]:
    pages = {page.name: page for page in read(site)}
    for style in site.rglob("*.css"):
        for address in STYLE_URL.findall(style.read_text(encoding="utf-8", errors="replace")):
            yield f"{style.relative_to(site)} loads {address}"
    for page in pages.values():
        yield from problems_of(page, site, pages)
    for name, wanted in PICTURES.items():
        if name not in pages or len(pages[name].pictures) < wanted:
            yield f"{name} has {len(pages[name].pictures) if name in pages else 'not been built'} of {wanted} pictures"
    titles = [page.title for page in pages.values() if not page.name.startswith("_modules/")]
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f"several pages are called {title!r}"


def problems_of(page: Page, site: Path, pages: dict[str, Page]) -> Iterator[str]:
    folder = (site / page.name).parent
    for address in page.loads:
        if urlsplit(address).netloc:
            yield f"{page.name} loads {address} from another host"
        elif not address.startswith("data:") and not (folder / unquote(urlsplit(address).path)).exists():
            yield f"{page.name} loads {address}, which does not exist"
    for address in page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        file = (folder / unquote(parts.path)).resolve() if parts.path else site.resolve() / page.name
        if not file.exists():
            yield f"{page.name} links to {address}, which does not exist"
        elif parts.fragment and file.suffix == ".html":
            target = pages[file.relative_to(site.resolve()).as_posix()]
            if unquote(parts.fragment) not in target.ids:
                yield f"{page.name} links to {address}, which is not on that page"
    if page.has_formulas and not any("tex-svg-full.js" in address for address in page.loads):
        yield f"{page.name} has formulas and no MathJax"
    is_guide = not page.name.startswith(NOT_GUIDES)
    if is_guide and not any("api/" in link for link in page.links):
        yield f"{page.name} has no link to the reference"
    if is_guide:
        for code in page.code:
            for line in code.split("\n"):
                if len(line) > WIDTH:
                    yield f"{page.name} has code of {len(line)} columns: {line.strip()}"


def main() -> int:
    site = Path(sys.argv[1])
    found = list(problems(site))
    print("\n".join(found))
    pages = list(read(site))
    pictures = sum(len(page.pictures) for page in pages)
    links = sum("api/" in link for page in pages for link in page.links if not page.name.startswith(NOT_GUIDES))
    print(f"{len(pages)} pages, {pictures} pictures, {links} links from guides to the reference, {len(found)} problems")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

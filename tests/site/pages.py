"""The files of the built site, as text: their addresses, links and anchors."""

import os
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

REPOSITORY = Path(__file__).parents[2]
ON_GITHUB = "https://github.com/modulax/modulax/"
# Templates of the theme and of extensions; no page of the site.
NOT_PAGES = ("_static", "_sources", "_images", "_downloads")


def built_site() -> Path:
    """Where `nox -s docs` writes; MODULAX_SITE=<folder> checks another build."""
    return Path(os.environ.get("MODULAX_SITE", REPOSITORY / "docs/_build/html")).resolve()


class _Links(HTMLParser):
    """Every id of a page, and every address that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value or "")
            elif name in ("href", "src") or (tag == "object" and name == "data"):
                self.targets.append(value or "")
            elif name == "srcset":
                self.targets.extend(candidate.split()[0] for candidate in (value or "").split(",") if candidate.strip())


@dataclass
class Site:
    """A built site: `pages` are the paths of its HTML files, `guides/schedules.html`."""

    root: Path
    _links: dict[str, _Links] = field(default_factory=dict)

    @cached_property
    def pages(self) -> list[str]:
        files = (file.relative_to(self.root) for file in self.root.rglob("*.html"))
        return sorted(file.as_posix() for file in files if file.parts[0] not in NOT_PAGES)

    def links(self, page: str) -> _Links:
        if page not in self._links:
            self._links[page] = _Links()
            self._links[page].feed((self.root / page).read_text(encoding="utf-8"))
        return self._links[page]

    def broken(self, page: str) -> list[str]:
        """The links of a page that lead to a file or an anchor that isn't there."""
        return [
            f"{target} ({reason})"
            for target in dict.fromkeys(self.links(page).targets)
            if (reason := self.why_broken(page, target))
        ]

    def why_broken(self, page: str, target: str) -> str | None:
        """What is missing where a link of a page leads; None if it works, or leads to another site."""
        path, anchor = self._resolve(page, target)
        if path is None:
            return None
        if not (self.root / path).is_file():
            return "no such file"
        # An empty fragment and "top" lead to the top of the page, in every browser.
        if not path.endswith(".html") or anchor in ("", "top") or anchor in self.links(path).ids:
            return None
        return "no such anchor"

    def _resolve(self, page: str, target: str) -> tuple[str | None, str]:
        """The file of the site and the anchor to which a link leads; no file if it leads elsewhere."""
        scheme, host, _, _, fragment = urlsplit(target)
        if scheme or host:
            return None, ""
        path = unquote(urlsplit(urljoin("/" + page, target)).path).lstrip("/")
        return path + "index.html" if path == "" or path.endswith("/") else path, unquote(fragment)

    def files_of_the_repository(self, page: str) -> list[str]:
        """The files to whose pages on GitHub a page links."""
        files = []
        for target in dict.fromkeys(self.links(page).targets):
            kind, _, path = unquote(urlsplit(target.removeprefix(ON_GITHUB)).path).partition("/")
            if target.startswith(ON_GITHUB) and kind in ("blob", "tree", "edit", "raw"):
                files.append(path.partition("/")[2])  # after the name of the branch
        return files

    def unreachable(self) -> list[str]:
        """The pages to which no path of links leads from the first one."""
        # The theme does not link the list of sources, which `viewcode` writes.
        rest, to_follow = set(self.pages) - {"index.html", "_modules/index.html"}, ["index.html"]
        while to_follow:
            page = to_follow.pop()
            neighbors = {path for target in self.links(page).targets if (path := self._resolve(page, target)[0])} & rest
            rest -= neighbors
            to_follow += neighbors
        return sorted(rest)

    def first(self, pattern: str) -> str:
        """The first page whose path matches a pattern, `notebooks/*.html`."""
        return next(page for page in self.pages if fnmatch(page, pattern))

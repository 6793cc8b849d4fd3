"""The head of a page: its description, the words by which the search finds it, and the links to its source.

Sphinx searches in the text, and an index entry is found only by its whole text. So the words of the index entries of a
page become its keywords, which Sphinx searches too: `! learning rate warmup` finds a page that writes of warm-up.
"""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes

REPOSITORY = "https://github.com/modulax/modulax"
BRANCH = "main"
LENGTH = 160  # of a description; search engines show no more
NOTEBOOKS = "notebooks/"


def keywords(document: nodes.document) -> list[str]:
    """Every word of the index entries, in order."""
    entries = [entry[1] for index in document.findall(addnodes.index) for entry in index["entries"]]
    return list(dict.fromkeys(re.findall(r"\w+", " ".join(entries).lower())))


def description(document: nodes.document) -> str:
    """The first paragraph, cut after a word."""
    text = next((" ".join(node.astext().split()) for node in document.findall(nodes.paragraph)), "")
    return text if len(text) <= LENGTH else text[:LENGTH].rpartition(" ")[0] + " …"


def add_meta(app: Any, document: nodes.document) -> None:
    """Add both to the head of the page."""
    contents = {"description": description(document)}
    if not app.env.docname.startswith("api/"):  # autodoc makes an entry for every name
        contents["keywords"] = ",".join(keywords(document))
    document += [nodes.meta(name=name, content=content) for name, content in contents.items() if content]


def source_of(app: Any, page: str) -> str | None:
    """The file of the repository from which a page was made; None for a page that the build writes."""
    file = app.env.doc2path(page, base=False) if page in app.env.all_docs else ""
    if page.startswith(NOTEBOOKS):
        return str(file)
    return f"docs/{file}" if file and page.count("/") < 2 else None  # not of a class


def prune_navigation(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Show in the side bar the pages of the first level, and those below the current one if they are few."""
    del app, templatename, doctree
    toctree = context["toctree"]
    few = {"collapse": True, "maxdepth": 1 if pagename.startswith("api/") else 2}
    context["toctree"] = lambda **options: toctree(**options | few)


def add_source_links(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the icons above a page lead to its file on GitHub."""
    del templatename, doctree
    if source := source_of(app, pagename):
        context["theme_source_view_link"] = f"{REPOSITORY}/blob/{BRANCH}/{source}"
        context["theme_source_edit_link"] = f"{REPOSITORY}/edit/{BRANCH}/{source}"
    else:
        context["page_source_suffix"] = ""  # no icons


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-read", add_meta)
    app.connect("html-page-context", add_source_links)
    app.connect("html-page-context", prune_navigation, priority=400)  # before the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}

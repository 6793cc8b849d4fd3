"""Markdown for myst-nb and autodoc: Python blocks of pages are cells of notebooks, and docstrings are Markdown."""

import inspect
import pkgutil
import re
from itertools import pairwise
from typing import Any

import nbformat
from docutils import nodes
from docutils.utils import new_document
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util.docutils import SphinxDirective

# A page shows what its code prints and draws, as a script would, and not the values of expressions.
SETTINGS = """\
%config InteractiveShell.ast_node_interactivity = "none"
%config InlineBackend.rc = {"figure.dpi": 144}"""


def read_page(text: str) -> Any:
    """A page as a notebook; a ```text block directly below a cell is its output, which is then not shown twice."""
    page = read_myst_markdown_notebook(text, code_directive="python", add_source_map=True)
    for cell, below in pairwise(page.cells):
        if cell.cell_type == "code" and below.source.startswith("```text"):
            cell.metadata["tags"] = ["remove-output"]
    page.metadata["language_info"] = {"name": "python"}  # of a page that isn't run
    page.metadata["mystnb"] = {"output_stderr": "remove"}
    if any(cell.cell_type == "code" for cell in page.cells):
        page.cells.insert(0, nbformat.v4.new_code_cell(SETTINGS, metadata={"tags": ["remove-cell"]}))
        page.metadata["source_map"].insert(0, 0)
    else:
        page.metadata["mystnb"]["execution_mode"] = "off"
    return page


class Pages(SphinxDirective):
    """A table of what is documented on pages of classes, a page in each line, with the first lines of docstrings."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        names = [name for line in self.content for name in line.split(", ") if name.count(".") == 1]
        rows = []
        for name in names:
            first_line = (inspect.getdoc(pkgutil.resolve_name(name)) or "").partition("\n")[0].replace("|", "\\|")
            rows.append(f"| [`{name.removeprefix('modulax.')}`](#{name}) | {first_line} |")
        found = self.parse_text_to_nodes("\n".join(["| name | what it does |", "|---|---|", *rows]))
        for table in found:
            if isinstance(table, nodes.Element):
                table["classes"].append("pages")
        return found


class Markdown(SphinxDirective):
    """Parses its content by MyST."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(self.get_source_info()[0] or "", self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        for block in document.findall(nodes.literal_block):
            if block["language"] == "none":  # an indented block
                block["language"] = "python"
        return document.children


def wrap(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put the directive around a docstring, in which napoleon has turned Google's sections into lists of fields."""
    del what, obj, options
    if app.env.docname in {f"api/{kind}/{name.rpartition('.')[2].lower()}" for kind in ("containers", "transforms")}:
        del lines[: lines.index("") + 1 if "" in lines else None]  # the first line is the head of the page
    text = re.sub(r"^\.\. rubric:: (.*)$", r":::{rubric} \1\n:::", "\n".join(lines), flags=re.MULTILINE)
    lines[:] = [".. markdown::", "", *(f"   {line}" for line in text.split("\n")), ""]


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("markdown", Markdown)
    app.add_directive("pages", Pages)
    app.connect("autodoc-process-docstring", wrap, priority=900)  # napoleon has 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}

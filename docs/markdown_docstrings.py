"""Docstrings in Markdown, for Sphinx: `code`, [links](url), $formulas$, fenced and indented blocks.

Autodoc reads reStructuredText. modulax writes its docstrings in the dialect that editors show and
that the pages of the documentation are written in, with Google's sections (`Args:`, `References:`).
This extension translates; it runs before napoleon, which makes fields of the sections.
"""

import re
from collections.abc import Iterator
from typing import Any

SECTION = re.compile(r"(Args|Returns|Yields|Raises|References|Attributes|Note|Warning):$")
FENCE = re.compile(r"( *)```(\w*)$")
FORMULA = re.compile(r"( *)\$\$(.*)$")

INLINE = re.compile(
    r"""
    `(?P<code>[^`]+)`
    | \$(?P<math>[^$]+)\$
    | \[(?P<text>[^\]]+)\]\((?P<url>[^)\s]+)\)
    | (?P<special>\| | (?<=\w)_(?!\w) | \\)
    """,
    re.VERBOSE,
)


def translate(lines: list[str]) -> list[str]:
    """A docstring in Markdown as reStructuredText."""
    out: list[str] = []
    for is_prose, block in blocks(lines):
        out += inline("\n".join(block)).split("\n") if is_prose else block
    return out


def blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Runs of prose, still to be translated, and code and formulas, already translated."""
    prose: list[str] = []
    in_section = False
    i = 0
    while i < len(lines):
        line = lines[i].rstrip()
        depth = indentation(line)
        if line and depth == 0:
            in_section = SECTION.match(line) is not None
        after_blank = i == 0 or not lines[i - 1].strip()
        if fence := FENCE.match(line):
            end = first(lines, i + 1, lambda s: s.strip() == "```")
            found = directive(f"code-block:: {fence[2] or 'text'}", lines[i + 1 : end], depth)
            i = end + 1
        elif formula := FORMULA.match(line):
            closed = formula[2].endswith("$$")
            end = i if closed else first(lines, i + 1, lambda s: s.strip().endswith("$$"))
            body = "\n".join([formula[2], *lines[i + 1 : end + 1]]).replace("$$", "")
            body = re.sub(r"\\(begin|end)\{aligned\}", "", body)  # Sphinx writes its own
            found = directive("math::", [s for s in body.split("\n") if s.strip()], depth)
            i = end + 1
        elif line and after_blank and depth >= 4 and not in_section:
            end = first(lines, i, lambda s: s.strip() and indentation(s) < 4)
            found = directive("code-block:: python", lines[i:end], 0)
            i = end
        else:
            prose.append(line)
            i += 1
            continue
        yield True, prose
        yield False, found
        prose = []
    yield True, prose


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def first(lines: list[str], start: int, fits: Any) -> int:
    return next((i for i in range(start, len(lines)) if fits(lines[i])), len(lines))


def directive(head: str, body: list[str], depth: int) -> list[str]:
    margin = min((indentation(line) for line in body if line.strip()), default=0)
    inside = [" " * (depth + 4) + line[margin:] if line.strip() else "" for line in body]
    return ["", " " * depth + ".. " + head, "", *inside, ""]


def inline(text: str) -> str:
    """Code, formulas, links and special characters of a paragraph."""

    def replace(match: re.Match[str]) -> str:
        groups = {k: re.sub(r"\s*\n\s*", " ", v) for k, v in match.groupdict().items() if v}
        match groups:
            case {"code": code} if re.fullmatch(r"(modulax\.[\w.]*)?[A-Z]\w+", code):
                new = f":py:obj:`{code}`"  # a link, if the documentation has the name
            case {"code": code}:
                new = f"``{code}``"
            case {"math": math}:
                new = f":math:`{math}`"
            case {"text": link, "url": url}:
                new = f"`{link} <{url}>`__"
            case _:
                return "\\" + match[0]
        before, after = text[: match.start()][-1:], text[match.end() :][:1]
        # Markup within a word needs an escaped space, which vanishes.
        return ("" if before in {"", " ", "\n"} else "\\ ") + new + ("\\ " if after.isalnum() else "")

    return INLINE.sub(replace, text)


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    del app, what, name, obj, options
    lines[:] = translate(lines)


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", process, priority=400)  # napoleon has 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}

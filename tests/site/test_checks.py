"""The checks themselves, on a small site that has every fault once."""

import pytest

from .pages import Site
from .serve import Chromium, serving
from .visits import Findings, accessibility, visit

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
HEAD = "<!doctype html><html lang=en><meta name=viewport content='width=device-width'><title>t</title><body>"
PAGES = {
    "index.html": f"""{HEAD}<main><h1 id="first">right</h1><p>\u03b2 and <code>\\beta</code>
        <a href="faulty.html#there">a link</a> <a href="#first">up</a> <img src="{PIXEL}" alt="a pixel">
        <div style="overflow: auto" tabindex="0"><div style="width: 3000px">wide</div></div></main>""",
    "faulty.html": f"""{HEAD}<main id="there"><div id="wide" style="width: 800px">w</div>
        <p>\\(x\\)</p> <p style="display: none">\\(y\\)</p> <span>\\alpha</span>
        <img src="missing.png" alt="a picture"> <img src="{PIXEL}" alt="pixel.gif">
        <a href="nowhere.html">no file</a> <a href="index.html#nowhere">no anchor</a>
        <a href="https://github.com/modulax/modulax/blob/main/no/such.py">no such file there</a>
        <script src="http://localhost:9/other.js"></script><script>throw new Error("thrown")</script>
        <p style="color: #ccc; background: #fff">pale</p><div style="height: 16000px"></div></main>""",
    "lost.html": HEAD,
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    for name, text in PAGES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return Site(folder)


@pytest.fixture(scope="module")
def findings(faulty: Site, browser: Chromium) -> Findings:
    with serving(faulty.root) as address:
        return browser.run(visit, address, ["index.html", "faulty.html"])


@pytest.mark.parametrize(
    "kind, texts",
    {
        "scroll": ["808 of 390 pixels: <div#wide>"],
        "foreign": ["http://localhost:9/other.js"],
        "failed": ["missing.png: 404"],
        "errors": ["thrown"],
        "formulas": ["\\(x\\)", "\\alpha"],
        "length": ["16", " pixels"],
        "images": ["missing.png was not loaded", "data: has no alternative text"],
    }.items(),
)
def test_each_fault_of_a_page_is_found(kind: str, texts: list[str], findings: Findings):
    (line,) = findings.report(kind)
    assert line.startswith("faulty.html: ")
    assert [text for text in texts if text not in line] == []
    assert "\\(y\\)" not in line  # which isn't shown


def test_each_broken_link_is_found(faulty: Site):
    assert faulty.broken("index.html") == []
    assert faulty.broken("faulty.html") == [
        "missing.png (no such file)",
        "nowhere.html (no such file)",
        "index.html#nowhere (no such anchor)",
    ]
    assert faulty.files_of_the_repository("faulty.html") == ["no/such.py"]
    assert faulty.unreachable() == ["lost.html"]


def test_poor_contrast_is_found(faulty: Site, browser: Chromium):
    with serving(faulty.root) as address:
        report = browser.run(accessibility, address, ["index.html", "faulty.html"]).report("violations")
    (line,) = (line for line in report if "color-contrast" in line)
    assert line.startswith("faulty.html: ")

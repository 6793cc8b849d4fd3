"""Run the Python blocks of the pages and the notebooks when the site is built, and show their output below each block.

Pages and notebooks run in two processes of their own: JAX starts in these, never in the process of Sphinx. An exception
fails the build. `sphinx-build -D run_code=0` builds the site without running anything.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmark_pictures import draw_ratios
from docutils import nodes
from page_blocks import PAGES_OF_LIBRARIES, BlockError, reader, run_blocks
from pictures import draw_sweep
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

HERE = Path(__file__).parent
PICTURES = HERE / "_executed"  # below the source, where Sphinx looks for images; git ignores it
WORKERS = 2
PLACEHOLDER = HERE / "_static" / "placeholder.png"  # of a build that runs nothing
logger = logging.getLogger(__name__)


class Shown(NamedTuple):
    """What a block shows below itself."""

    code: str
    text: str
    pictures: tuple[str, ...] = ()


def run_page(page: Path) -> list[Shown]:
    """The outputs of the blocks of one page, in order."""
    shown = []
    with tempfile.TemporaryDirectory() as folder, reader(Path(folder)) as module:
        for block, text, following in run_blocks(page, module):
            is_on_the_page = following is not None and following.follows and following.info == "text"
            name = f"{page.relative_to(HERE).with_suffix('')}-{len(shown)}".replace("/", "-")
            shown.append(Shown(block.code, "" if is_on_the_page else text.rstrip(), save_figures(name)))
    return shown


def save_figures(name: str) -> tuple[str, ...]:
    """Save the open figures of matplotlib and close them."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return ()
    files = []
    for number in pyplot.get_fignums():
        files.append(f"{name}-{number}.png")
        pyplot.figure(number).savefig(PICTURES / files[-1], dpi=144)
        pyplot.close(number)
    return tuple(files)


def run_notebook(notebook: Path) -> None:
    """Run a notebook in a kernel and write its outputs into it."""
    import nbformat
    from nbclient import NotebookClient

    contents: Any = nbformat.read(notebook, as_version=4)
    # The kernel chooses matplotlib's inline backend, which shows figures, unless MPLBACKEND is set.
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(contents, timeout=300, resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    nbformat.write(contents, notebook)


def run(job: Path) -> tuple[Path, list[Shown], float, str]:
    """One page or notebook: its outputs, the seconds that it took, and the error if there was one."""
    began = time.perf_counter()
    shown: list[Shown] = []
    error = ""
    try:
        if job.suffix == ".ipynb":
            run_notebook(job)
        else:
            shown = run_page(job)
    except BlockError as raised:
        error = str(raised)
    except Exception as raised:
        error = f"{job.name}: {type(raised).__name__}: {raised}"
    return job, shown, time.perf_counter() - began, error


def draw() -> float:
    """The pictures of the landing page and of the benchmarks, in a worker: the first one needs JAX."""
    began = time.perf_counter()
    draw_sweep(PICTURES)
    draw_ratios(PICTURES)
    return time.perf_counter() - began


def prepare_worker() -> None:
    os.environ["MPLBACKEND"] = "Agg"


def run_everything(app: Any) -> None:
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir()
    app.executed_blocks = {}
    if not app.config.run_code:
        for theme in ("light", "dark"):
            for name in ("sweep", "benchmarks"):
                shutil.copy(PLACEHOLDER, PICTURES / f"{name}-{theme}.png")
        return
    notebooks = sorted((HERE / "notebooks").glob("*.ipynb"))
    pages = [
        page
        for page in HERE.rglob("*.md")
        if not {"_build", "notebooks", "_executed", "optimizers"} & set(page.relative_to(HERE).parts)
        and page not in PAGES_OF_LIBRARIES
        and "```python" in page.read_text(encoding="utf-8")
    ]
    pages.sort(key=lambda page: -page.stat().st_size)  # the longest first, so that both workers end together
    spawn = multiprocessing.get_context("spawn")
    errors = []
    with ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=prepare_worker) as workers:
        picture = workers.submit(draw)
        for job, shown, seconds, error in workers.map(run, [*notebooks, *pages]):
            logger.info("ran %s in %.1f s", job.relative_to(HERE), seconds)
            app.executed_blocks[str(job.relative_to(HERE).with_suffix(""))] = shown
            errors += [error] if error else []
        logger.info("drew the picture of the landing page in %.1f s", picture.result())
    if errors:
        raise ExtensionError("\n".join(errors))


class ShowOutputs(SphinxTransform):
    """Put outputs below the blocks that made them."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        left = list(getattr(self.app, "executed_blocks", {}).get(self.env.docname, []))
        for block in list(self.document.findall(nodes.literal_block)):
            match = next((i for i, shown in enumerate(left) if shown.code.strip() == block.astext().strip()), None)
            if match is None:
                continue
            shown = left.pop(match)
            below: list[nodes.Node] = []
            if shown.text:
                text = nodes.literal_block(shown.text, shown.text, language="text", classes=["output"])
                below.append(text)
            for picture in shown.pictures:
                below.append(nodes.image(uri=f"/_executed/{picture}", alt="The figure of the code above"))
            parent = block.parent
            parent[parent.index(block) + 1 : parent.index(block) + 1] = below


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("run_code", True, "env", bool)
    app.connect("builder-inited", run_everything)
    app.add_transform(ShowOutputs)
    return {"parallel_read_safe": False, "parallel_write_safe": True}

"""The documentation, built by `nox -s docs`."""

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for the extensions of this folder

import kernels  # noqa: E402
import page_head  # noqa: E402
import pictures  # noqa: E402

project = "modulax"
author = "The modulax authors"
project_copyright = "The modulax authors"
release = importlib.metadata.version("modulax")
version = release

extensions = [
    "code_links",
    "markdown_pages",
    "myst_nb",
    "page_head",
    "schedule_pictures",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]
nitpicky = False
suppress_warnings = ["config.cache"]

# MathJax from PyPI, so that a page loads nothing from another host. The file holds the fonts and every TeX package.
MATHJAX = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"
STATIC = HERE / "_build" / "static"
STATIC.mkdir(parents=True, exist_ok=True)
shutil.copy(Path(str(importlib.metadata.distribution("sphinx-mathjax-offline").locate_file(MATHJAX))), STATIC)
html_css_files = ["modulax.css", "pictures.css"]
mathjax_path = "tex-svg-full.js"
# The menu would load more files, from another host.
mathjax3_config = {"options": {"enableMenu": False}}

# The notebooks live at the top of the repository; sphinx reads only the folder of this file, so
# each build takes fresh copies. git ignores them.
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
    (HERE / "notebooks").mkdir(exist_ok=True)
    shutil.copy(notebook, HERE / "notebooks")

# The pictures and the kernels of the pages share what XLA has compiled.
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": str(HERE / "_build" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # the lines of Python take time in every program
}
pictures.make_if_changed()
if sys.platform == "linux":
    _process = kernels.start(HERE / "_build")

myst_enable_extensions = [
    "amsmath",
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
    "fieldlist",
    "substitution",
]
myst_heading_anchors = 3
# The figures of the landing page.
myst_substitutions = pictures.figures()

# Every page and every notebook runs in a kernel of its own. Outputs are kept as long as no source changes.
nb_custom_formats = {".md": "markdown_pages.read_page"}
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "outputs" / pictures.digest())
# `nox -s libraries` runs the first two, and `optimizer_runs.py` the examples of the others.
nb_execution_excludepatterns = ["docs/libraries.md", "docs/sweeps_on_many_machines.md", "api/optimizers/*.md"]
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_render_image_options = {"alt": "The figure of the code above"}

# The docstrings are Markdown in Google's sections; `Args:` of a class are its fields.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style"), ("References", "notes_style")]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
# The docstrings say in words what a field is; jaxtyping's runtime types would take ten lines.
autodoc_typehints = "none"
python_use_unqualified_type_names = True
add_module_names = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"modulax {version}"
html_copy_source = False
templates_path = ["_templates"]
html_static_path = [str(STATIC), "_static"]
html_js_files = ["accessibility.js", "sortable.js"]
html_search_scorer = str(HERE / "search_scorer.js")
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "footer_icons": [{"name": "GitHub", "url": page_head.REPOSITORY, "html": "GitHub", "class": ""}],
}
html_show_sphinx = False

"""The documentation, built by `nox -s docs`."""

import importlib.metadata
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for the extensions of this folder

project = "modulax"
author = "The modulax authors"
project_copyright = "The modulax authors"
release = importlib.metadata.version("modulax")
version = release

extensions = [
    "markdown_docstrings",
    "myst_nb",
    "optimizer_pages",
    "schedule_pictures",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]
nitpicky = False

# The notebooks live at the top of the repository; sphinx reads only the folder of this file, so
# each build takes fresh copies. git ignores them.
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
    (HERE / "notebooks").mkdir(exist_ok=True)
    shutil.copy(notebook, HERE / "notebooks")

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Every notebook runs at every build, and an exception in it fails the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The docstrings are Markdown in Google's sections; `Args:` of a class are its fields.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("References", "notes_style")]
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
html_title = "modulax"
html_copy_source = False
html_static_path = ["_static"]
html_js_files = ["accessibility.js"]
html_show_sphinx = False

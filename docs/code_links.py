"""Names in inline code become links: modulax's to the reference, those of other packages to their documentation.

`AdamW`, `mx.AdamW(1e-3)`, `schedules.CosineDecay` and `modulax.tree.get` lead to the reference wherever the name
resolves there. The addresses of other packages follow from the patterns below; nothing is downloaded.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
JAX = "https://docs.jax.dev/en/latest/_autosummary/{name}.html"
EQUINOX = "https://docs.kidger.site/equinox/api/{page}/#equinox.{rest}"
FLAX = "https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/{page}.html#flax.nnx.{rest}"
OPTAX = "https://optax.readthedocs.io/en/latest/api/generated/{name}.html"
ABBREVIATIONS = {"jnp": "jax.numpy", "eqx": "equinox", "flax.nnx": "nnx", "mx": "modulax", "lax": "jax.lax"}
# Where a function of another package is documented, by the sources of their sites in November 2026; a name that isn't
# listed stays plain.
JAX_NAMES = re.compile(
    r"jax\.(jit|grad|value_and_grad|vmap|pmap|checkpoint|eval_shape|device_put|jacrev|jacfwd|hessian|jvp|vjp|linearize"
    r"|custom_jvp|custom_vjp|block_until_ready|Array|ShapeDtypeStruct|debug\.print|tree\.\w+|random\.\w+|lax\.\w+"
    r"|nn\.\w+|numpy\.\w+|tree_util\.\w+)"
)
EQUINOX_PAGES = {
    "transformations": "filter_jit filter_grad filter_value_and_grad filter_vmap filter_eval_shape filter_hessian",
    "manipulation": "filter partition combine is_array is_inexact_array tree_at tree_equal",
    "serialisation": "tree_serialise_leaves tree_deserialise_leaves",
    "module/module": "Module",
    "module/advanced_fields": "field",
    "errors": "error_if",
}
FLAX_PAGES = {
    "training/optimizer": "Optimizer",
    "transforms": "jit grad value_and_grad vmap scan remat",
    "variables": "Param Variable",
    "module": "Module",
    "graph": "split merge state update clone",
    "rnglib": "Rngs",
}
OPTAX_NAMES = (
    "adam adamw sgd lion lamb lars rmsprop adagrad adafactor lbfgs nadam radam yogi adabelief adamax chain MultiSteps "
    "clip clip_by_global_norm masked trace scale scale_by_adam ema inject_hyperparams cosine_decay_schedule "
    "warmup_cosine_decay_schedule join_schedules apply_updates incremental_update periodic_update"
)


def page_of(pages: dict[str, str], name: str) -> str | None:
    return next((page for page, names in pages.items() if name in names.split()), None)


def address(name: str) -> str | None:
    """The documentation of a name of another package."""
    head, _, rest = name.partition(".")
    name = f"{ABBREVIATIONS.get(head, head)}.{rest}"
    package, _, rest = name.partition(".")
    if JAX_NAMES.fullmatch(name):
        return JAX.format(name=name)
    if package == "equinox" and (page := page_of(EQUINOX_PAGES, rest)):
        return EQUINOX.format(page=page, rest=rest)
    if package == "nnx" and (page := page_of(FLAX_PAGES, rest)):
        return FLAX.format(page=page, rest=rest)
    if package == "optax" and rest in OPTAX_NAMES.split():
        return OPTAX.format(name=name)
    return None


def resolve(name: str, known: dict[str, str], *, is_first: bool) -> str | None:
    """The full name in the reference, `known` being the ends of names that have one meaning."""
    head, _, rest = name.partition(".")
    if head in {"mx", "modulax"} and rest:
        return known.get(rest)
    is_class = name.rpartition(".")[2][:1].isupper()
    return known.get(name) if is_class or (is_first and ("." in name or "_" in name)) else None


def ends(full_names: list[str]) -> dict[str, str]:
    """Names without `modulax.`, and the last parts of names that no other public name ends with."""
    whole = {name.removeprefix("modulax."): name for name in full_names}
    short: dict[str, set[str]] = {}
    for name in full_names:
        parts = name.split(".")
        # Classes and functions, not methods: the name before the last begins with a small letter.
        if not parts[-2][:1].isupper():
            short.setdefault(parts[-1], set()).add(name)
    return {end: next(iter(names)) for end, names in short.items() if len(names) == 1} | whole


class LinkCode(SphinxPostTransform):
    default_priority = 20  # after the references are resolved

    def run(self, **kwargs: Any) -> None:
        objects = self.env.domains.python_domain.objects
        known = ends([name for name in objects if name.startswith("modulax.")])
        is_reference = self.env.docname.startswith("api/")
        for literal in list(self.document.findall(nodes.literal)):
            if any(isinstance(x, nodes.reference | nodes.title) for x in ancestors(literal)):
                continue
            if any(isinstance(x, nodes.Element) for x in literal.children):
                continue
            self.link(literal, known, objects, is_reference)

    def link(self, literal: nodes.literal, known: dict[str, str], objects: Any, is_reference: bool) -> None:
        text, made, end = literal.astext(), [], 0
        for match in NAME.finditer(text):
            name = match[0]
            is_first = match.start() == 0 and text[match.end() :][:1] in {"", "("}
            full = resolve(name, known, is_first=is_first and not is_reference)
            target = nodes.Text(name)
            if full:
                entry = objects[full]
                node = make_refnode(self.app.builder, self.env.docname, entry.docname, entry.node_id, target, full)
            elif url := address(name):
                node = nodes.reference("", "", target, internal=False, refuri=url)
            else:
                continue
            made += [nodes.Text(text[end : match.start()]), node]
            end = match.end()
        if made:
            literal.children = []
            literal += [node for node in [*made, nodes.Text(text[end:])] if node.astext()]


def ancestors(node: nodes.Node) -> list[nodes.Node]:
    found = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found


BACK = re.compile(r'<a class="viewcode-back" href="[./]*([^"#]*)\.html#([^"]*)">.*?</a>\n?')


def drop_dead_links(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop viewcode's links to names that the reference documents under another name."""
    del templatename, doctree
    if pagename.startswith("_modules/") and "body" in context:
        places = {(x.docname, x.node_id) for x in app.env.domains.python_domain.objects.values()}
        context["body"] = BACK.sub(lambda link: link[0] if link.groups() in places else "", context["body"])


def setup(app: Any) -> dict[str, bool]:
    app.add_post_transform(LinkCode)
    app.connect("html-page-context", drop_dead_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

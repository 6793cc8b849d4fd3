"""Names in inline code become links: modulax's to the reference, those of other packages to their documentation.

`AdamW`, `mx.AdamW(1e-3)`, `schedules.CosineDecay` and `modulax.tree.get` lead to the reference wherever the name
resolves there. Sphinx's intersphinx would download the inventories of other packages in every build.
"""

import re
from collections import Counter
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
BACK = re.compile(r'<a class="viewcode-back" href="[./]*([^"#]*)\.html#([^"]*)">.*?</a>\n?')
ABBREVIATIONS = {"jnp": "jax.numpy", "lax": "jax.lax", "eqx": "equinox", "nnx": "flax.nnx"}
EQUINOX, FLAX = "https://docs.kidger.site/equinox/api", "https://flax.readthedocs.io/en/latest/api_reference/flax.nnx"
# Where names of other packages are documented, by the sources of their sites in November 2026; others stay plain.
ELSEWHERE = {
    r"jax\.(jit|grad|value_and_grad|vmap|pmap|checkpoint|eval_shape|device_put|jacrev|jacfwd|hessian|jvp|vjp|linearize"
    r"|custom_jvp|custom_vjp|block_until_ready|Array|ShapeDtypeStruct|debug\.print|tree\.\w+|random\.\w+|lax\.\w+"
    r"|nn\.\w+|numpy\.\w+|tree_util\.\w+)": "https://docs.jax.dev/en/latest/_autosummary/{}.html",
    r"equinox\.filter_(jit|grad|value_and_grad|vmap|eval_shape|hessian)": f"{EQUINOX}/transformations/#{{}}",
    r"equinox\.(filter|partition|combine|is_array|is_inexact_array|tree_(at|equal))": f"{EQUINOX}/manipulation/#{{}}",
    r"equinox\.tree_(de)?serialise_leaves": f"{EQUINOX}/serialisation/#{{}}",
    r"equinox\.Module": f"{EQUINOX}/module/module/#{{}}",
    r"equinox\.field": f"{EQUINOX}/module/advanced_fields/#{{}}",
    r"equinox\.error_if": f"{EQUINOX}/errors/#{{}}",
    r"flax\.nnx\.Optimizer": f"{FLAX}/training/optimizer.html#{{}}",
    r"flax\.nnx\.(jit|grad|value_and_grad|vmap|scan|remat)": f"{FLAX}/transforms.html#{{}}",
    r"flax\.nnx\.(Param|Variable)": f"{FLAX}/variables.html#{{}}",
    r"flax\.nnx\.Module": f"{FLAX}/module.html#{{}}",
    r"flax\.nnx\.(split|merge|state|update|clone)": f"{FLAX}/graph.html#{{}}",
    r"flax\.nnx\.Rngs": f"{FLAX}/rnglib.html#{{}}",
    r"optax\.(adam|adamw|sgd|lion|lamb|lars|rmsprop|adagrad|adafactor|lbfgs|nadam|radam|yogi|adabelief|adamax|chain"
    r"|MultiSteps|clip|clip_by_global_norm|masked|trace|scale|scale_by_adam|ema|inject_hyperparams"
    r"|cosine_decay_schedule|warmup_cosine_decay_schedule|join_schedules|apply_updates|incremental_update"
    r"|periodic_update)": "https://optax.readthedocs.io/en/latest/api/generated/{}.html",
}


def address(name: str) -> str | None:
    """The documentation of a name of another package."""
    head, dot, rest = name.partition(".")
    name = ABBREVIATIONS.get(head, head) + dot + rest
    return next((url.format(name) for names, url in ELSEWHERE.items() if re.fullmatch(names, name)), None)


def ends(full_names: list[str]) -> dict[str, str]:
    """Names without `modulax.`, and the last parts of names that no other class or function ends with."""
    whole = {name.removeprefix("modulax."): name for name in full_names}
    # The name before the last of a method begins with a capital letter.
    outside = [name for name in full_names if not name.split(".")[-2][:1].isupper()]
    short = {name.rpartition(".")[2]: name for name in outside}
    counts = Counter(name.rpartition(".")[2] for name in outside)
    return {end: name for end, name in short.items() if counts[end] == 1} | whole


def is_inside(node: nodes.Node | None, *kinds: type[nodes.Node]) -> bool:
    return node is not None and (isinstance(node, kinds) or is_inside(node.parent, *kinds))


class LinkCode(SphinxPostTransform):
    default_priority = 20  # after the references are resolved

    def run(self, **kwargs: Any) -> None:
        self.objects = self.env.domains.python_domain.objects
        # Autodoc also lists some classes in the private module in which they are written.
        self.known = ends([name for name in self.objects if name.startswith("modulax.") and "._" not in name])
        for literal in list(self.document.findall(nodes.literal)):
            if not is_inside(literal.parent, nodes.reference, nodes.title):
                self.link(literal)

    def link(self, literal: nodes.literal) -> None:
        text, end, parts = literal.astext(), 0, []
        for match in NAME.finditer(text):
            if link := self.reference(match[0], match.start() == 0 and text[match.end() :][:1] in {"", "("}):
                parts += [nodes.Text(text[end : match.start()]), link]
                end = match.end()
        if parts:
            literal.children = []
            literal += [part for part in [*parts, nodes.Text(text[end:])] if part.astext()]

    def reference(self, name: str, is_first: bool) -> nodes.Node | None:
        """A link from a name, of which `is_first` says that the code is this name, or a call of it."""
        text = nodes.Text(name)
        if full := self.resolve(name, is_first and not self.env.docname.startswith("api/")):
            entry = self.objects[full]
            return make_refnode(self.app.builder, self.env.docname, entry.docname, entry.node_id, text, full)
        url = address(name)
        return nodes.reference("", "", text, internal=False, refuri=url) if url else None

    def resolve(self, name: str, is_first: bool) -> str | None:
        """The full name in the reference: of a class always, of a function only if it can't be a word of the text."""
        if name.startswith(("modulax.", "mx.")):
            return self.known.get(name.partition(".")[2])
        is_class = name.rpartition(".")[2][:1].isupper()
        return self.known.get(name) if is_class or (is_first and ("." in name or "_" in name)) else None


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

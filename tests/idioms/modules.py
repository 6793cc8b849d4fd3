"""What programs do with the module: they import from it, patch it, and look for names."""

import importlib
import inspect
import sys
import warnings
from typing import Any
from unittest import mock

from ._table import GRADS, PARAMS, idiom, idioms, take


@idiom
def patched_attribute(o: Any) -> Any:
    before = o.adam
    o.adam = lambda *args, **kwargs: o.sgd(0.5)
    try:
        return take(o.adam(0.1)), before is o.adam
    finally:
        o.adam = before


@idiom
def patched_with_mock(o: Any) -> Any:
    with mock.patch.object(o, "adam", return_value=o.sgd(0.1)) as made:
        updates = take(o.adam(0.3))[0]
    with mock.patch(f"{o.__name__}.contrib.muon", autospec=True) as muon:
        o.contrib.muon(0.1)
    return updates, made.call_args.args, muon.call_count, take(o.adam(0.1))[0]


@idiom
def patched_by_its_path(o: Any) -> Any:
    with mock.patch(f"{o.__name__}.apply_updates", side_effect=lambda p, u: p):
        return o.apply_updates(PARAMS, GRADS)


def imported(o: Any, line: str) -> dict[str, Any]:
    """The names that an import statement defines, under the name of the module."""
    names: dict[str, Any] = {}
    name = "optax" if sys.modules["optax"] is o else o.__name__
    with warnings.catch_warnings(action="ignore"):
        exec(line.replace("optax", name), names)
    return names


idioms(
    star_import=lambda o: sorted(
        {"adam", "chain", "GradientTransformation", "MultiSteps"} & imported(o, "from optax import *").keys()
    ),
    import_of_base=lambda o: imported(o, "from optax._src import base")["base"].EmptyState is o.EmptyState,
    import_of_private_names=lambda o: [
        callable(x)
        for name, x in imported(
            o,
            "from optax._src.combine import chain\nfrom optax._src.transform import scale_by_adam, ScaleByAdamState\n"
            "from optax._src.numerics import safe_increment\nfrom optax._src.utils import canonicalize_dtype",
        ).items()
        if name[0] != "_"
    ],
    private_attributes=lambda o: (
        o._src.base.GradientTransformation is o.GradientTransformation,
        o._src.wrappers.MultiSteps is o.MultiSteps,
        o._src.linesearch.ZoomLinesearchInfo is o.ZoomLinesearchInfo,
    ),
    private_module_of_contrib=lambda o: (
        imported(o, "from optax.contrib._muon import muon")["muon"] is o.contrib.muon,
        o.contrib._muon.MuonState is o.contrib.MuonState,
    ),
    import_of_submodules=lambda o: [
        importlib.import_module(f"{o.__name__}.{name}") is getattr(o, name)
        for name in ("contrib", "losses", "schedules", "transforms", "tree_utils", "projections", "tree")
    ],
    import_from_submodules=lambda o: callable(imported(o, "from optax.tree_utils import tree_get")["tree_get"]),
    same_names_in_submodules=lambda o: [
        o.transforms.chain is o.chain,
        o.schedules.constant_schedule is o.constant_schedule,
        o.losses.squared_error is o.squared_error,
        o.tree_utils.tree_get is o.tree.get,
    ],
    version=lambda o: (o.__version__, tuple(map(int, o.__version__.split(".")[:2])) >= (0, 2)),
    names_that_are_there=lambda o: [
        hasattr(o, name) for name in ("adam", "tree", "nope", "apply_updates", "experimental", "scale_by_nope")
    ],
    listed_names=lambda o: sorted({"adam", "chain", "sgd", "nope"} & set(dir(o))),
    name_of_a_function=lambda o: [
        f.__name__ for f in (o.adam, o.chain, o.cosine_decay_schedule, o.contrib.muon, o.inject_hyperparams)
    ],
    doc_of_a_function=lambda o: bool(o.adam.__doc__),
    module_of_functions=lambda o: inspect.ismodule(o) and inspect.ismodule(o.contrib) and inspect.isfunction(o.adam),
)

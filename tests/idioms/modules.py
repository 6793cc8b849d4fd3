"""What programs do with the module: they import from it, patch it, and look for names."""

import importlib
import inspect
import sys
import warnings
from typing import Any
from unittest import mock

from ._table import idiom, idioms, take


@idiom
def patched_with_mock(o: Any) -> Any:
    with mock.patch.object(o, "adam", return_value=o.sgd(0.1)) as made:
        updates = take(o.adam(0.3))[0]
    with mock.patch(f"{o.__name__}.contrib.muon", autospec=True) as muon:
        o.contrib.muon(0.1)
    return updates, made.call_args.args, muon.call_count, take(o.adam(0.1))[0]


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
    import_of_private_names=lambda o: [
        callable(x)
        for name, x in imported(
            o,
            "from optax._src.combine import chain\nfrom optax._src.transform import scale_by_adam, ScaleByAdamState\n"
            "from optax._src.numerics import safe_increment\nfrom optax._src.utils import canonicalize_dtype",
        ).items()
        if name[0] != "_"
    ],
    import_of_submodules=lambda o: [
        importlib.import_module(f"{o.__name__}.{name}") is getattr(o, name)
        for name in ("contrib", "losses", "schedules", "transforms", "tree_utils", "projections", "tree")
    ],
    version=lambda o: (o.__version__, tuple(map(int, o.__version__.split(".")[:2])) >= (0, 2)),
    names_that_are_there=lambda o: [
        hasattr(o, name) for name in ("adam", "tree", "nope", "apply_updates", "experimental", "scale_by_nope")
    ],
    doc_of_a_function=lambda o: bool(o.adam.__doc__),
    module_of_functions=lambda o: inspect.ismodule(o) and inspect.ismodule(o.contrib) and inspect.isfunction(o.adam),
)

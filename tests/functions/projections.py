import numpy as np
import optax

from modulax import projections

from ._case import Case

theirs = optax.projections


def simplex(x, scale=1.0):
    """By bisection for the threshold, beyond the precision of float64."""
    low, high = x.max() - scale, x.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(x - middle, 0).sum() > scale else (low, middle)
    return np.maximum(x - (low + high) / 2, 0)


def l1_sphere(x, scale=1.0):
    return np.where(x < 0, -1, 1) * simplex(np.abs(x), scale)


def l1_ball(x, scale=1.0):
    return x if np.abs(x).sum() <= scale else l1_sphere(x, scale)


def l2_sphere(x, scale=1.0):
    return scale * x / np.linalg.norm(x)


def l2_ball(x, scale=1.0):
    return x if np.linalg.norm(x) <= scale else l2_sphere(x, scale)


def line(x, a):
    return np.sum(x * a) / np.sum(a * a) * a


def hyperplane(x, a, b):
    return x + (b - np.sum(x * a)) / np.sum(a * a) * a


def halfspace(x, a, b):
    return x if np.sum(x * a) <= b else hyperplane(x, a, b)


def _of_tree(function, oracle, twin, scale, name="", **kwargs):
    """A case whose scale is an array, or Python's one by default."""

    def arguments(rng):
        return {"tree": rng.normal(size=(3, 4)), **({} if scale is None else {"scale": np.array(scale)})}

    numbers = {} if scale is None else {"numbers": ("scale",), "misfits": {"scale": (3,)}}
    return Case(
        function,
        arguments,
        lambda tree, **rest: oracle(tree, **rest),
        twin,
        name,
        floats=("tree",),
        **{**numbers, **kwargs},
    )


def _of_point(function, oracle, twin, b=None, name=""):
    def arguments(rng):
        return {"x": rng.normal(size=(3, 4)), "a": rng.normal(size=(3, 4)), **({} if b is None else {"b": np.array(b)})}

    numbers, misfits = (("a",), {"a": (4, 3)}) if b is None else (("a", "b"), {"a": (4, 3), "b": (3,)})
    return Case(function, arguments, oracle, twin, name, floats=("x",), numbers=numbers, misfits=misfits)


def _box(rng):
    upper = rng.uniform(0.1, 1, size=(3, 4))
    return {"tree": rng.normal(size=(3, 4)), "lower": -rng.uniform(0.1, 1, size=4), "upper": upper}


CASES = (
    Case(
        projections.projection_non_negative,
        lambda rng: {"tree": rng.normal(size=(3, 4))},
        lambda tree: np.maximum(tree, 0),
        theirs.projection_non_negative,
        floats=("tree",),
    ),
    Case(
        projections.projection_box,
        _box,
        lambda tree, lower, upper: np.clip(tree, lower, upper),
        theirs.projection_box,
        floats=("tree",),
        numbers=("lower", "upper"),
        misfits={"lower": (3, 1, 4), "upper": (2,)},
    ),
    _of_tree(
        projections.projection_hypercube,
        lambda x, scale: np.clip(x, 0, scale),
        theirs.projection_hypercube,
        0.5,
        misfits={"scale": (3,)},
    ),
    _of_tree(
        projections.projection_linf_ball,
        lambda x, scale: np.clip(x, -scale, scale),
        theirs.projection_linf_ball,
        0.5,
    ),
    _of_tree(projections.projection_simplex, simplex, theirs.projection_simplex, 2.5, "several above"),
    _of_tree(projections.projection_simplex, simplex, theirs.projection_simplex, None, "default"),
    _of_tree(projections.projection_simplex, simplex, theirs.projection_simplex, 30.0, "all above"),
    _of_tree(projections.projection_l1_sphere, l1_sphere, theirs.projection_l1_sphere, 2.5),
    _of_tree(projections.projection_l1_sphere, l1_sphere, theirs.projection_l1_sphere, 30.0, "from inside"),
    _of_tree(projections.projection_l1_ball, l1_ball, theirs.projection_l1_ball, 2.5),
    _of_tree(projections.projection_l1_ball, l1_ball, theirs.projection_l1_ball, 30.0, "inside"),
    _of_tree(projections.projection_l2_sphere, l2_sphere, theirs.projection_l2_sphere, 0.7),
    _of_tree(projections.projection_l2_ball, l2_ball, theirs.projection_l2_ball, 0.7),
    _of_tree(projections.projection_l2_ball, l2_ball, theirs.projection_l2_ball, 30.0, "inside"),
    _of_point(projections.projection_vector, line, theirs.projection_vector),
    _of_point(projections.projection_hyperplane, hyperplane, theirs.projection_hyperplane, 0.3),
    _of_point(projections.projection_halfspace, halfspace, theirs.projection_halfspace, -9.0),
    _of_point(projections.projection_halfspace, halfspace, theirs.projection_halfspace, 9.0, "inside"),
)

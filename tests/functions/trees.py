from ._case import FunctionDifference

FUNCTION_DIFFERENCES = (
    FunctionDifference(
        "`tree.scale`, `tree.add_scale` and `tree.clip` by an array",
        "the dtypes of the tree; one rounding",
        "an array of float32 makes float32 of bfloat16",
        "a number never changes the dtype of a leaf",
        "test_tree_functions.py::test_a_number_makes_no_leaf_wider",
    ),
    FunctionDifference(
        "`tree.sum`, `tree.norm` and `tree.vdot` of float16 and bfloat16",
        "accumulated and returned in float32",
        "in the dtype of the leaves, where the squares of 300 overflow",
        "a sum of many numbers needs more digits than they have",
        "test_tree_functions.py::test_reductions_of_low_dtypes_are_done_in_float32",
    ),
    FunctionDifference(
        "the gradient of `tree.norm` at zero",
        "zero",
        "NaN",
        "zero is a subgradient",
        "test_tree_functions.py::test_a_norm_is_differentiable_at_zero",
    ),
    FunctionDifference(
        "`tree.max` and `tree.min` of integers",
        "an integer",
        "a float, which integers beyond $2^{24}$ do not fit in",
        "they are entries of the tree",
        "test_tree_functions.py::test_integers_are_reduced_as_integers",
    ),
    FunctionDifference(
        "the largest absolute value (`ord=jnp.inf`) of a tree without leaves",
        "zero",
        "minus infinity",
        "it is a norm",
        "test_tree_functions.py::test_trees_of_nothing",
    ),
    FunctionDifference(
        "leaves that broadcast to the shape of neither, and shapes that `tree.allclose` or `tree.vdot` would broadcast",
        "an error with the path",
        "a third shape",
        "it is a mistake that nobody would see",
        "test_tree_functions.py::test_what_does_not_fit_is_refused_by_its_path",
    ),
    FunctionDifference(
        "`tree.cast` of complex leaves to a float dtype",
        "complex leaves of that precision",
        "their real parts",
        "half of the numbers would be lost",
        "test_tree_functions.py::test_casts",
    ),
)

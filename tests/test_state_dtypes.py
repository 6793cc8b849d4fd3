"""What users store: the dtypes of every state for parameters in bfloat16."""

from .generated import STATE_DTYPES, state_dtypes

# The names of states that add up, in which a small addend must not be lost, whatever the dtype of the parameters.
SUMS = ("nu", "nu_max", "exp_avg_sq", "grad_sum", "sum_of_squares", "grad_sum_sq", "step_sizes", "acc_grads", "delta")


def test_the_table_is_up_to_date():
    """`python -m tests.generated` writes it. Compare a line that changes with what is documented."""
    assert state_dtypes() == STATE_DTYPES.read_text(encoding="utf-8")


def test_what_adds_up_is_kept_in_float32():
    for line in STATE_DTYPES.read_text(encoding="utf-8").splitlines():
        name, _, fields = line.partition(": ")
        for path, _, dtype in (field.rpartition(" ") for field in fields.split(", ")):
            is_sum = path.split(".")[-1] in SUMS and not any(x in name for x in ("SM3", "("))  # whose `nu` is a mean
            assert dtype == "float32" or not is_sum, line

"""The words of errors, reprs and tables."""

from .._support.checks import (
    brief as brief,
    listing as listing,
    one_line as one_line,
    options_of as options_of,
    suggestion as suggestion,
)
from .._support.packages import imported as imported
from .._support.printing import (
    bytes_text as bytes_text,
    format_leaf as format_leaf,
    format_state as format_state,
    format_value as format_value,
    html_of_arrays as html_of_arrays,
    html_table as html_table,
    size_text as size_text,
    table as table,
)
from .._support.wrong_calls import (
    explained as explained,
    foreign_attribute as foreign_attribute,
    meant_by as meant_by,
    result_is_indexed as result_is_indexed,
    wrong_call as wrong_call,
)

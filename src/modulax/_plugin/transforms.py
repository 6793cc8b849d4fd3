"""What is known of a transform: its fields, parts, arguments and schedules."""

from .._protocol.container import (
    check_optimizer as check_optimizer,
    check_part as check_part,
    in_dtypes_of as in_dtypes_of,
    part_fields as part_fields,
)
from .._protocol.entry import (
    AbstractUpdateBoundary as AbstractUpdateBoundary,
    InitBoundary as InitBoundary,
    as_written as as_written,
    entry as entry,
)
from .._protocol.extra_arguments import (
    RATES as RATES,
    USUAL as USUAL,
    optional_arguments as optional_arguments,
    required_arguments as required_arguments,
)
from .._protocol.frozen import is_frozen as is_frozen, value_at as value_at
from .._protocol.hyperparameters import (
    ARRAY_TYPES as ARRAY_TYPES,
    BY_KEYWORD as BY_KEYWORD,
    AbstractHyperparameters as AbstractHyperparameters,
    batched_number as batched_number,
    fields_inside as fields_inside,
    find_all as find_all,
    find_paths as find_paths,
)
from .._protocol.schedule import (
    has_schedule as has_schedule,
    has_stateful_schedule as has_stateful_schedule,
    is_schedule as is_schedule,
    wraps_function as wraps_function,
)
from .._protocol.schedule_values import (
    known_values as known_values,
    largest as largest,
    reading as reading,
    schedule_states as schedule_states,
    with_current_values as with_current_values,
)
from .._protocol.transform import (
    KEEPS_PARAMETERS as KEEPS_PARAMETERS,
    everything_in as everything_in,
    is_empty as is_empty,
    keeps_gradients as keeps_gradients,
    zeros_returned as zeros_returned,
)
from .._support.slots import library as library

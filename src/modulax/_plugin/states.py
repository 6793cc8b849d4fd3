"""What the fields of a state declare, and states with stacks or with fewer bits."""

from .._support.module import (
    AbstractModule as AbstractModule,
    FieldKind as FieldKind,
    every_field as every_field,
    kind_of as kind_of,
    with_fields as with_fields,
    with_subclasses as with_subclasses,
)
from ..tree._quantized import is_quantized as is_quantized
from ..tree._stacks import (
    AbstractStackedState as AbstractStackedState,
    stack_like as stack_like,
    stacked_states as stacked_states,
)
from ..tree._state import (
    Section as Section,
    declarations as declarations,
    init_even_if_empty as init_even_if_empty,
    is_per_matrix as is_per_matrix,
    one_level as one_level,
    outermost as outermost,
    owners as owners,
    owning_paths as owning_paths,
    sections as sections,
    states_with_names as states_with_names,
)

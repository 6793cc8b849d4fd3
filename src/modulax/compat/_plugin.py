"""What `checkpoint` reads of the forms of optax's states."""

from ._states import CLASSES as CLASSES, OTHER_COUNTS as OTHER_COUNTS
from ._whole import (
    Traced as Traced,
    Whole as Whole,
    whole_from_optax as whole_from_optax,
    whole_to_optax as whole_to_optax,
)

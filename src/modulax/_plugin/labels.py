"""Masks, roles, and other labels of parameters."""

from .._protocol.masks import (
    AbstractLabels as AbstractLabels,
    as_labels as as_labels,
    is_call as is_call,
    mask_of as mask_of,
    not_in as not_in,
    select as select,
)
from .._roles.find import (
    AbstractRoles as AbstractRoles,
    as_roles as as_roles,
    model_of as model_of,
    roles_of as roles_of,
    table_of as table_of,
)
from .._roles.labels import (
    by_path_or_role as by_path_or_role,
    read_by_role as read_by_role,
    roles_read_by as roles_read_by,
    taken_as_hidden as taken_as_hidden,
    with_roles as with_roles,
)
from .._transforms.by_path import AbstractMultiplier as AbstractMultiplier

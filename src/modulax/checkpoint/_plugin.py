"""What `sweeps` uses to read the arrays of a folder by their names."""

from ._store import opened as opened, unescaped as unescaped
from ._stored import nested as nested

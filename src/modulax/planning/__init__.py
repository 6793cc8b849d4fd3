"""Will it fit, and what will it cost: a step compiled for accelerators that need not be there, and read."""

from ._plan import plan as plan
from ._report import Communication as Communication, Plan as Plan, StateField as StateField
from ._topology import topology as topology

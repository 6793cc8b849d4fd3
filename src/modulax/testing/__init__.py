"""The laws that every transform obeys, for the tests of your own."""

from ._case import Case as Case, default_params as default_params
from ._laws import LAWS as LAWS, Law as Law, check_transform as check_transform

"""The laws that every transform obeys, to check your own transforms in your tests."""

from ._case import Case as Case, default_params as default_params
from ._laws import LAWS as LAWS, Law as Law, check_transform as check_transform

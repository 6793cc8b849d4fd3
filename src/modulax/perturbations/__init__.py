"""Perturbed functions: smooth a function by noise in its input to make it differentiable."""

from ._noise import AbstractNoise as AbstractNoise, Gumbel as Gumbel, Normal as Normal
from ._perturbed import make_perturbed_fun as make_perturbed_fun

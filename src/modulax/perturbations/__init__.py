"""Perturbations: functions that become differentiable when their input is noisy."""

from ._noise import AbstractNoise as AbstractNoise, Gumbel as Gumbel, Normal as Normal
from ._perturbed import make_perturbed_fun as make_perturbed_fun

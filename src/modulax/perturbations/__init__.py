"""Perturbations: functions that become differentiable when their input is noisy."""

"""Trajectories of the authors' released code: how they were made, and what they are compared with."""

from pathlib import Path

FROZEN = Path(__file__).with_name("trajectories.npz")

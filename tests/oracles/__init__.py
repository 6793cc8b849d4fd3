"""Trajectories of the authors' released code: how they were made, and what they are compared with."""

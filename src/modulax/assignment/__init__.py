"""Assignments: which row goes with which column, at the least cost."""

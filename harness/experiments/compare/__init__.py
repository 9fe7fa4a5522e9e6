"""Comparison of a candidate with a baseline: pairs of runs of the same schedule, losses, verdicts."""

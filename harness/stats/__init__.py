"""Statistics that know nothing of runs: lists of numbers in, decisions with their uncertainty out."""

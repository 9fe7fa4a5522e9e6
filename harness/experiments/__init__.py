"""Questions that take more than one run: sweeps, searches, comparisons, placements, fits."""

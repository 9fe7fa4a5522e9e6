"""Runs over lists of options and seeds, and the curve that they give: `bench sweep`."""

"""Fits a generator to a trace, states how good it is, and generates requests from it at any rate and length."""

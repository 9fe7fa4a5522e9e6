"""Runs: what is planned, how it is sent under each clock, and how it is recorded."""

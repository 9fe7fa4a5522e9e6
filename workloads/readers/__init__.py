"""Readers of public traces, one format a file; columns are found by name."""

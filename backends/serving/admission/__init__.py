"""Admission rules, one a file."""

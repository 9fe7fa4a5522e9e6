"""Whom memory admits, one rule a file."""

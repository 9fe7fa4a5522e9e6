"""Quantities of the requests table, and what other tools call the same."""

"""Quantities of the requests table, one file each."""

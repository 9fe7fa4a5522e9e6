"""Metrics of a whole run: rows of the table in `builtin.py`; a file of its own holds one of yours."""

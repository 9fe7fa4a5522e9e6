"""Runs, records, metrics, SLOs and the command line: everything that is arithmetic on what happened."""

"""Topics of the acceptance table, one a file."""

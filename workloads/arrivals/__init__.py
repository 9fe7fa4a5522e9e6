"""When requests arrive, one process a file."""

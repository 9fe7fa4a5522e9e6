"""Which replica gets a request, one rule a file."""

"""How long a step takes, one model a file."""

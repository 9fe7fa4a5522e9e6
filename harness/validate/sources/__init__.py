"""Sets of public measurements, one a file."""

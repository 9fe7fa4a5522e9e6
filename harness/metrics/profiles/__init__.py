"""How other tools define what they print: a row each in `builtin.py`, their words for our events."""

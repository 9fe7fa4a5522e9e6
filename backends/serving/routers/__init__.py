"""Which replica gets a request: short rules in `builtin.py`, others in a file each."""

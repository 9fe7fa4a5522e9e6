"""How KV memory is given out: short modes in `builtin.py`, others in a file each."""

"""What stores KV beyond GPU memory: the tiers of a memory hierarchy, in `builtin.py`."""

"""How KV memory is given out, one mode a file."""

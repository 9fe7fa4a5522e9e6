"""How long answers will be: length predictors, which some policies use; the short rules in `builtin.py`."""

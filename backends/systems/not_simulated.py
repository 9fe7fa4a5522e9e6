"""Systems that bench does not simulate: what each of them adds has no counterpart here.

Source: each row names what is missing.
"""

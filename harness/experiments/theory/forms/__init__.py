"""The forms of `bench theory`: public functions, found by the registry; the formulas stand beside this package."""

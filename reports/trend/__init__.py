"""The series of nights in words."""

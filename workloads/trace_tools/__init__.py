"""What `bench trace` does with recorded traces: look, check, convert, scale, slice, download."""

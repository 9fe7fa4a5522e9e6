"""Published serving systems: one file each, with all that the system needs beyond the shared core."""

"""The serving core: one scheduler under two clocks. No clock, no I/O, no random numbers, no numpy in here."""

"""How other tools define what they print, one file each: their words for our events."""

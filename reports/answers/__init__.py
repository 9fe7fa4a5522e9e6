"""What the commands that compute from many runs answer, as text and markdown; each takes the JSON that was stored."""

"""What is inside a prompt."""

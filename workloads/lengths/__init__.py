"""How long prompts and answers are, one distribution a file."""

"""How long prompts and answers are: a distribution a file, and lists of real requests in `lengths.toml`."""

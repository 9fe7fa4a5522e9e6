"""The built-in engine's process: serving core, executor, and the link to them."""

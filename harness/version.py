"""The version of bench: of the package, of results, and in requests to servers."""

__version__ = "0.1.0"

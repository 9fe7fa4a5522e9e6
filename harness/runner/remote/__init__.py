"""Runs against a remote server: senders in processes of their own, and the measurement of this client."""

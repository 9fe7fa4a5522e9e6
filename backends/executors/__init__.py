"""Executors: run batches on a real model."""

"""Batches of contexts, and their order."""

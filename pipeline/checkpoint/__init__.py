"""Checkpoints of a run: written, published, kept, loaded."""

"""GLUE."""

"""Compilation by numba, and its cache."""

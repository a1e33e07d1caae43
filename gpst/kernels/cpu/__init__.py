"""Kernels in numba."""

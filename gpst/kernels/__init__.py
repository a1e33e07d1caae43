"""Kernels under the models, each with a plain PyTorch form."""

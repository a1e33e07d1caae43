"""Kernels under the models: fused forms for CPUs and GPUs, each with a plain PyTorch form."""

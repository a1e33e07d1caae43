"""GPST: Generative Pretrained Structured Transformers (ACL 2024, arXiv 2403.08293)."""

__version__ = "0.1.0"

"""Tokenizers: loading the usual file formats, training, and engines that encode fast."""

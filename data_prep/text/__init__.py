"""Bytes to clean text: encodings, normalisation."""

"""Sentence segmenters."""

"""Summarization."""

"""Ranks: where they are, how they meet, signals, environment."""

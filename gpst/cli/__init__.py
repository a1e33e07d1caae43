"""The commands of `python -m gpst`."""

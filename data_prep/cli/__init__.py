"""The commands of `python -m data_prep`."""

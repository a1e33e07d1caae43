"""The models: GPST, GPT-2 and a classifier on either."""

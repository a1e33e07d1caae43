"""A training step on a GPU, foreseen without one: what benchmarks/gpu_forecast.py is made of."""

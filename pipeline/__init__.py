"""Distributed training of GPST: configuration, data order, engine, checkpoints, monitoring."""

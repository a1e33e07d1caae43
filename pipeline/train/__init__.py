"""Training: the trainer, its step, schedule, checks before a run."""

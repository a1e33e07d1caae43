"""All that knows DeepSpeed."""

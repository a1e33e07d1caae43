"""Other people's software: transformers, lm-evaluation-harness, the authors' weights."""

"""Fine-tuning for grammar induction."""

"""Left-to-right search: parsing, prefix probabilities and generation."""

"""Left-to-right search: parsing, prefix probabilities and generation (design section 6)."""

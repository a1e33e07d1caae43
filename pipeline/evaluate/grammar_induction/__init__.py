"""F1 of induced trees against a treebank."""

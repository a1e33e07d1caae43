"""Evaluations: held-out losses, perplexity, treebanks, SyntaxGym."""

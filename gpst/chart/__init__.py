"""The pruned chart: the plan (integers), the inside and outside passes, decoding."""

"""The authors' released weights as ours."""

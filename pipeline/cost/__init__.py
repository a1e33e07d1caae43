"""What a run costs: arithmetic, memory."""

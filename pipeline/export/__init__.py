"""What an exported model is told besides its weights."""

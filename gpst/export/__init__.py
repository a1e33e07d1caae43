"""Exported models: folders in the layout of Hugging Face."""

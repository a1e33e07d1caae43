"""Errors of exported models, without the seconds that torch takes to import."""


class ModelFolderError(ValueError):
    """A folder is not an exported model, or is damaged; the message names file and cure."""

"""Command lines whose mistakes are one line, as those of the configuration."""

from argparse import ArgumentParser
from typing import NoReturn

from pipeline.errors import ConfigError


class Parser(ArgumentParser):
    """An ArgumentParser that raises instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"command line: {message} (see --help)")

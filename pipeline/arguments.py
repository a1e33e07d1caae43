"""Command lines whose mistakes are reported in one line, like those of a configuration."""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from pipeline.errors import ConfigError


class _Once(Action):
    """Stores an option's value; a second one is an error, as neither is surely meant."""

    seen = False

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if option_string is not None and self.seen:
            parser.error(f"{option_string} is given twice: give it once")
        self.seen = option_string is not None
        setattr(namespace, self.dest, values)


class Parser(ArgumentParser):
    """An ArgumentParser that raises instead of printing its usage and ending the process.

    An option with a value may be given only once.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As ArgumentParser's."""
        for action in self._actions:
            if isinstance(action, _Once):
                action.seen = False
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"command line: {message} (see --help)")

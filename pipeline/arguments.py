"""Command lines whose mistakes are one line, as those of the configuration."""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from pipeline.errors import ConfigError


class _Once(Action):
    """Stores an option's value; of two values neither is the one that was meant."""

    given = False

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if option_string is not None and self.given:
            parser.error(f"{option_string} is given twice: give it once")
        self.given = option_string is not None
        setattr(namespace, self.dest, values)


class Parser(ArgumentParser):
    """An ArgumentParser that raises instead of printing its usage and ending the process.

    An option with a value that is given twice is a mistake, too.
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
                action.given = False
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"command line: {message} (see --help)")

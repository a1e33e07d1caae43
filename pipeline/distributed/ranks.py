"""The life of a rank, from its command line to its exit code.

    with Ranks("pretrain") as ranks:
        ...                             # the command line: the first rank reports what is wrong
        ranks.rendezvous()              # the others wait here until rank 0 has checked the run
        if ranks.is_main: ...           # everything that a user can get wrong
        world = ranks.connect()         # all ranks
        ranks.exit_code = ...           # training
    return ranks.exit_code

An error ends the block: one rank prints one line, and all ranks get its exit code.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from pipeline.distributed import environment
from pipeline.distributed.environment import DEFAULT_TIMEOUT_MINUTES
from pipeline.distributed.placement import Placement, check_local_size, find_placement
from pipeline.distributed.signals import StopRequest
from pipeline.errors import ConfigError, EarlyStop, explain, report
from pipeline.terminal import outliving_the_terminal

if TYPE_CHECKING:
    from pipeline.distributed.rendezvous import Rendezvous
    from pipeline.distributed.world import World

# What takes seconds to import comes after the checks of the command line.


class Ranks:
    """This rank among the others.

    Args:
        program: begins the lines of errors.
    """

    def __init__(self, program: str) -> None:
        self.program, self.exit_code = program, 0
        self._reports: bool | None = None
        """Whether this rank prints an error before the rendezvous; None: the first one does."""
        self._rendezvous: Rendezvous | None = None
        self._stop = StopRequest(early=True)
        self._contexts, self._connection = ExitStack(), ExitStack()

    @cached_property
    def placement(self) -> Placement:
        """This process among the ranks; errors as of `find_placement`."""
        return find_placement(os.environ)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.placement.size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which checks the run."""
        return self.placement.rank == 0

    @property
    def is_first(self) -> bool:
        """Whether this rank answers for all before the rendezvous, whatever its variables say."""
        try:
            return self.is_main
        except ConfigError:
            return True

    def rendezvous(self) -> None:
        """Finds the other ranks; all but rank 0 wait here until it calls `connect`.

        Raises:
            ConfigError: the environment is wrong, or rank 0 cannot be reached.
        """
        from pipeline.distributed.rendezvous import Rendezvous
        from pipeline.distributed.world import settle_environment

        self.enter(outliving_the_terminal())
        self._reports = self.placement.local_rank == 0  # variables are alike on a machine
        environment.check(os.environ)
        self._reports = True
        check_local_size(self.placement, os.environ)
        settle_environment(self.placement)
        limit_s = 60.0 * environment.timeout_minutes(os.environ, DEFAULT_TIMEOUT_MINUTES)
        self._rendezvous = Rendezvous.open(self.placement, self.program, limit_s, self._stop)
        self._rendezvous.wait_for_rank_0()

    def enter(self, context: AbstractContextManager[object]) -> None:
        """Enters a context that is left when this rank ends."""
        self._contexts.enter_context(context)

    def connect(self, timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES) -> World:
        """The connected ranks; all ranks call it. Errors as of `open_world`.

        Args:
            timeout_minutes: of the run's configuration; DEEPSPEED_TIMEOUT goes before.
        """
        from pipeline.distributed.world import open_world

        assert self._rendezvous is not None
        self._rendezvous.set_ready()
        minutes = environment.timeout_minutes(os.environ, timeout_minutes)
        opened = open_world(self._rendezvous, self._stop, minutes)
        return self._connection.enter_context(opened)

    def __enter__(self) -> Ranks:
        self.enter(self._stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            self._connection.__exit__(kind, error, traceback)
        except BaseException as failure:
            error = failure
        try:
            if error is not None:
                self.exit_code = self._fail(error)
        finally:
            if self._rendezvous is not None:
                self._rendezvous.part()
            self._contexts.close()
        return error is not None

    def _fail(self, error: BaseException) -> int:
        if self._rendezvous is None:
            return self._fail_alone(error)
        code = self._rendezvous.fail(error)
        if self.size > 1:
            # The threads of broken connections could keep this process from ending.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _fail_alone(self, error: BaseException) -> int:
        explained = explain(error)
        one_for_all = self._reports is None or isinstance(error, (KeyboardInterrupt, EarlyStop))
        if explained is None or (self.is_first if one_for_all else self._reports):
            return report(error, self.program)
        return explained[1]

"""Word-level search over the trees of a given text (paper 3.4).

From hypotheses that all have just written token j, expand by COMP and by GEN of token j + 1, pool,
keep the best b, and expand those that end in COMP again until all have written token j + 1. The sum
of their probabilities is then the prefix probability, a lower bound of the model's. Trees and the
paper's surprisals come from here; probabilities of tokens from score.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.beam import Beam, checked_beam
from gpst.search.candidates import COMP, Ahead, Reading
from gpst.search.constraints import Context, InsideWord, TextTables
from gpst.search.next_tokens import NextTokens
from gpst.search.pool import Expected, Kept, Pool
from gpst.tree import Tree

_ROWS_AHEAD = {"cpu": 192, "gpu": 2048}
"""Read at once where hypotheses are read ahead."""
_JUDGED_DIM = 256
"""Width of models whose token layers cost more than asking which of them are needed."""


@dataclass(frozen=True)
class Parse:
    """One way to read a context."""

    trees: list[Tree]
    """A tree for each sentence."""
    log_p: float
    """log p(tokens, trees), nats."""


@dataclass(frozen=True)
class TextResult:
    """What a search found about one context."""

    parses: list[Parse]
    """The most probable ones, best first."""
    log_p: float
    """log of the sum over the beam of p(tokens, trees), nats: a lower bound of log p(tokens)."""
    prefix_log_p: Float[np.ndarray, "N"] | None
    """After each token, log of the sum over the beam of p(tokens so far, actions so far), nats;
    None for the action-level search, whose hypotheses are not equally far."""

    @property
    def quotient_surprisals(self) -> Float[np.ndarray, "N"]:
        """-log2 of the quotient of a token's prefix probability and that of the token before, bits.

        The paper's surprisal (3.4), for its beam of 300: what a beam drops counts as surprisal, so
        that the quotients of all tokens sum to less than 1, the less the farther in a text and the
        narrower the beam. Probabilities are those of gpst/search/score.py.

        Raises:
            ValueError: the search was action-level.
        """
        if self.prefix_log_p is None:
            raise ValueError("surprisals need a word-level search (sync=True)")
        return -np.diff(self.prefix_log_p, prepend=0.0) / np.log(2.0)


@dataclass(frozen=True)
class Prefix:
    """The beam of a context when all its hypotheses have just written a token, or are complete."""

    context: int
    num_tokens: int
    """Tokens written; one more than the context has once its last sentence is closed."""
    hypotheses: list[tuple[float, list[int]]]
    """Share of the beam's probability and actions (tokens and COMP) of each, best first."""


@torch.inference_mode()
def search_text(
    model: GPSTModel,
    contexts: Sequence[Context],
    *,
    beam: int = 20,
    sync: bool = True,
    inside_word: Sequence[InsideWord] | None = None,
    num_best: int = 1,
    on_prefix: Callable[[Prefix], None] | None = None,
) -> list[TextResult]:
    """Searches the trees of given contexts, all at once; dropout is off.

    Sentence ends are known: after the last token of a sentence only COMP is possible until one
    constituent is left. Impossible actions get no probability; nothing is renormalised.

    Args:
        contexts: token ids, as contexts[context][sentence][token]; similar lengths waste least.
        beam: hypotheses kept for each context.
        sync: compare hypotheses at equal numbers of tokens; false: at equal numbers of actions.
        inside_word: whether the boundary after a token lies inside an atom (a word of several
            pieces). After an atom's last token COMP must close it before GEN, and no constituent
            holds a part of one and something else. Without a chart there is no rule to choose.
        num_best: parses returned for each context, at most `beam`.
        on_prefix: hears of each context's beam after each token (word-level search); what it raises
            ends the search.
    Raises:
        ValueError: an empty context or one longer than max_context_tokens; beam below 1.
    """
    with evaluating(model):
        search = _TextSearch(model, contexts, beam, inside_word)
        prefixes = search.run(True, on_prefix) if sync else search.run_by_action()
        return search.results(contexts, prefixes, num_best)


def read_prompt(
    model: GPSTModel,
    contexts: Sequence[Context],
    beam: int,
    inside_word: Sequence[InsideWord] | None = None,
) -> Beam:
    """The hypotheses that have just written the last token of each (equally long) context."""
    search = _TextSearch(model, contexts, beam, inside_word)
    search.run(False)
    return search.beam


class _TextSearch:
    def __init__(
        self,
        model: GPSTModel,
        contexts: Sequence[Context],
        beam: int,
        inside_word: Sequence[InsideWord] | None,
    ):
        device = model.embedding.weight.device
        self.tables = TextTables.of(contexts, inside_word, model.config.max_context_tokens, device)
        self.size = checked_beam(beam)
        self.beam = Beam(model, len(contexts), self.size)
        judged = model.config.hidden_dim >= _JUDGED_DIM
        self._expected = Expected(len(contexts)) if judged else None

    def run(
        self, close: bool, on_prefix: Callable[[Prefix], None] | None = None
    ) -> Float[Tensor, "C words"]:
        """Token by token; returns the log of the sum over the beam after each phase.

        A context's phase is over when none of its hypotheses ends in COMP; contexts do not wait
        for each other.

        Args:
            close: go on until the last sentences are one constituent.
        """
        lengths = self.tables.lengths
        phase = torch.zeros_like(lengths)
        log_p = self.beam.log_p
        prefixes = log_p.new_full((len(lengths), int(lengths.max()) + 1), -torch.inf)
        while True:
            unfinished = self._unfinished()
            going = unfinished & (self.beam.pending == COMP)
            over = ~going.any(1)
            sums = self.beam.log_p.logsumexp(1, keepdim=True)
            at = phase.minimum(lengths).unsqueeze(1)
            now = over & (phase <= lengths)
            prefixes.scatter_(1, at, torch.where(now.unsqueeze(1), sums, prefixes.gather(1, at)))
            if on_prefix is not None:
                ended = over & (phase > 0) & (phase <= lengths + 1)
                for context in ended.nonzero().flatten().tolist():
                    on_prefix(self._prefix(context, int(phase[context])))
            phase += over
            active = torch.where(over.unsqueeze(1), unfinished, going)
            active &= (phase <= (lengths + 1 if close else lengths)).unsqueeze(1)
            if not bool(active.any()):
                return prefixes[:, 1:]
            if self._expected is not None:
                self._expected.restart(over.cpu().numpy())
            self._expand(active, self._ahead())
            self.beam.compact()

    def _prefix(self, context: int, num_tokens: int) -> Prefix:
        shares = self.beam.log_p[context].softmax(0).sort(descending=True)
        ranked = zip(shares.values.tolist(), shares.indices.tolist(), strict=True)
        hypotheses = [(p, self.beam.actions(context, number)) for p, number in ranked if p > 0]
        return Prefix(context, num_tokens, hypotheses)

    def run_by_action(self) -> None:
        """All hypotheses grow by one action at a time."""
        active = self._unfinished()
        while bool(active.any()):
            self._expand(active, None)
            self.beam.compact()
            active = self._unfinished()

    def _unfinished(self) -> Bool[Tensor, "C b"]:
        complete = self.beam.words == self.tables.lengths.unsqueeze(1)
        complete &= self.beam.pending_start() <= self.tables.closed_start.unsqueeze(1)
        return self.beam.alive & ~complete

    def _ahead(self) -> Ahead:
        words, tables = self.beam.words, self.tables
        closed = torch.where(
            words == tables.lengths.unsqueeze(1), tables.closed_start.unsqueeze(1), -1
        )
        most = _ROWS_AHEAD["cpu" if words.device.type == "cpu" else "gpu"]
        return Ahead(tables.comp_limit.gather(1, words), closed, most)

    def _expand(self, active: Bool[Tensor, "C b"], ahead: Ahead | None) -> None:
        beam, tables = self.beam, self.tables
        unread = beam.log_p.masked_fill(active, -torch.inf)
        reading = beam.read(active, ahead)
        can_join = reading.valid & (reading.start > tables.comp_limit.gather(1, reading.words))
        can_write = reading.valid & (reading.start <= tables.gen_limit.gather(1, reading.words))
        comp = (reading.log_p + reading.comp_log_p).masked_fill(~can_join, -torch.inf)
        gen = (reading.log_p + reading.gen_log_p).masked_fill(~can_write, -torch.inf)
        shape = (len(comp), reading.levels, -1)
        host = (x.view(shape).cpu().numpy() for x in (reading.valid, comp, gen))
        guess = -math.log(beam.model.config.vocab_size)
        expected = None if ahead is None else self._expected
        pool = Pool(unread.cpu().numpy(), *host, guess=guess, size=self.size, expected=expected)
        scores = NextTokens(beam, reading, tables.next_token.gather(1, reading.words))
        kept, wanted = pool.keep()
        while wanted.any():
            scores.improve(pool, wanted)
            kept, wanted = pool.keep()
        self._take(reading, kept, scores)

    def _take(self, reading: Reading, kept: Kept, scores: NextTokens) -> None:
        device = reading.rows.device
        level, column, wrote = (
            torch.from_numpy(x).to(device) for x in (kept.level, kept.column, kept.wrote)
        )
        width = reading.rows.shape[1] // reading.levels
        read = level >= 0
        at = torch.where(read, level * width + column, 0)
        parents = torch.where(read, reading.rows.gather(1, at), column)
        way = torch.arange(reading.levels, device=device)
        ways = (way * width + torch.where(read, column, 0).unsqueeze(2)).flatten(1)
        node_slots = reading.slots.gather(1, ways).view(*at.shape, -1)
        node_slots = node_slots.masked_fill(way > level.unsqueeze(2), -1)
        pending = torch.where(read, COMP, self.beam.pending.gather(1, parents))
        self.beam.take(
            torch.from_numpy(kept.log_p).to(device),
            parents,
            torch.where(wrote, scores.tokens.gather(1, at), pending),
            self.beam.words.gather(1, parents) + wrote,
            node_slots,
            torch.where(wrote, scores.slots.gather(1, at), -1),
        )

    def results(
        self, contexts: Sequence[Context], prefixes: Tensor | None, num_best: int
    ) -> list[TextResult]:
        order = self.beam.log_p.argsort(1, descending=True)[:, :num_best].cpu()
        log_p, total = self.beam.log_p.cpu(), self.beam.log_p.logsumexp(1).cpu()
        prefix_log_p = None if prefixes is None else prefixes.cpu().numpy()
        results = []
        for number, context in enumerate(contexts):
            lengths = [len(sentence) for sentence in context]
            parses = [
                Parse(
                    trees_of_actions(self.beam.actions(number, best), lengths),
                    float(log_p[number, best]),
                )
                for best in order[number].tolist()
                if log_p[number, best] > -torch.inf
            ]
            of_context = None if prefix_log_p is None else prefix_log_p[number, : sum(lengths)]
            results.append(TextResult(parses, float(total[number]), of_context))
        return results


def trees_of_actions(actions: Sequence[int], lengths: Sequence[int]) -> list[Tree]:
    """The trees of sentences of the given lengths; each takes 2n - 1 of the actions."""
    trees, at = [], 0
    for length in lengths:
        of_tree = actions[at : at + 2 * length - 1]
        trees.append(Tree.from_actions([1 if action == COMP else 0 for action in of_tree]))
        at += len(of_tree)
    return trees

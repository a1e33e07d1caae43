"""Text word by word, its trees summed over a beam: what every probability of a text comes from.

Hypotheses that have all written the same tokens go up until all of them want to write. The next
token then has

    p(token | tokens so far) = sum over the hypotheses h of w_h p(token | h),

and all of them write it, which turns w_h into w_h p(token | h). What a beam drops while it goes up
leaves its weight to what it keeps, and no token is looked at before it is written. So the
probabilities of all tokens sum to 1, and those of a text multiply. Where one constituent is left,
joining is impossible and the next action writes for sure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.layers.transformer import at_least_fp32
from gpst.model.gpst import GPSTModel
from gpst.search.beam import Beam, checked_beam
from gpst.search.candidates import Candidates

GOES_ON, ENDS, OPEN = 0, 1, 2
"""What is known of the place after a token: the sentence goes on; it ends; or nothing, so that a
hypothesis with one constituent ends it if the token may end one."""
_WANTS = -3
"""Pending of a hypothesis that wants to write."""


@dataclass(frozen=True)
class _Looked:
    """What the token layers say for hypotheses that want to write."""

    where: Bool[Tensor, "C b"]
    features: Float[Tensor, "M H"]
    """Of the M hypotheses `where`, in order."""
    slots: Int64[Tensor, "C b"]


class WordSearch:
    """C contexts of b hypotheses; contexts go on independently of each other. See the module.

    Args:
        model: in evaluation mode.
        num_contexts: C.
        beam: b.
        final_tokens: tokens that may end a sentence where that is not known.
        sentence_beam: of the hypotheses that open a further sentence, only so many live on, with
            the weight of all: a beam holds few of the many combinations of earlier sentences'
            trees. Which ones depends on the past alone, as does everything here.
    """

    def __init__(
        self,
        model: GPSTModel,
        num_contexts: int,
        beam: int,
        *,
        final_tokens: Collection[int] = (),
        sentence_beam: int = 1,
    ):
        if sentence_beam < 1:
            raise ValueError(f"sentence_beam: {sentence_beam} is not allowed; at least 1 is")
        weight = model.embedding.weight
        self.model, self.size, self.sentence_beam = model, checked_beam(beam), sentence_beam
        self.beam = Beam(model, num_contexts, self.size)
        self.words: Int64[Tensor, "C"] = torch.zeros_like(self.beam.top[:, 0])
        """Tokens written."""
        self.last_token = torch.full_like(self.words, -1)
        self.log_p: Float[Tensor, "C"] = torch.zeros_like(self.beam.log_p[:, 0])
        """log p of the tokens written, and of sentences that have ended since; nats."""
        self._is_final = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        self._is_final[sorted(final_tokens)] = True
        self._sentence_start = torch.zeros_like(self.beam.words)
        self._hidden = weight.new_zeros(num_contexts, beam, model.config.hidden_dim)
        self._looked: _Looked | None = None

    @property
    def ready(self) -> Bool[Tensor, "C"]:
        """Contexts of which all hypotheses want to write."""
        beam = self.beam
        return ~(beam.alive & (beam.pending != _WANTS)).any(1)

    def go_up(self, places: Int64[Tensor, "C"], where: Bool[Tensor, "C"]) -> None:
        """One more action of every hypothesis that does not want to write yet.

        Args:
            places: GOES_ON, ENDS or OPEN, after the tokens written.
            where: contexts that go on, of which at least one is not ready.
        """
        beam = self.beam
        self._looked = None
        active = beam.alive & (beam.pending != _WANTS) & where.unsqueeze(1)
        reading = beam.read(active)
        start = self._sentence_start.gather(1, reading.rows)
        closed = reading.start <= start
        ends = (places == ENDS).unsqueeze(1)
        writes = reading.valid & (closed | ~ends)
        gen_log_p = reading.log_p + torch.where(closed, 0.0, reading.gen_log_p)
        none = torch.full_like(reading.rows, -1)
        gen = Candidates(
            gen_log_p.masked_fill(~writes, -torch.inf),
            reading.rows,
            torch.full_like(none, _WANTS),
            reading.words,
            reading.slots,
            none,
        )
        comp = reading.comp(reading.valid & ~closed)
        candidates = Candidates.joined([beam.unread(active), comp, gen])
        choice = candidates.log_p.topk(min(self.size, candidates.log_p.shape[1]), dim=1).indices
        may_end = self._is_final[self.last_token.clamp_min(0)] & (self.last_token >= 0)
        opens = closed & (ends | ((places == OPEN) & may_end).unsqueeze(1))
        starts = (self._sentence_start, start, torch.where(opens, reading.words, start))
        self._sentence_start = torch.cat(starts, 1).gather(1, choice)
        self._keep_hidden(reading.hidden, reading.valid, choice)
        total = candidates.log_p.logsumexp(1)
        beam.keep(candidates, choice)
        beam.rescale(total)
        self.log_p = torch.where(where, total, self.log_p)

    def _keep_hidden(
        self,
        hidden: Float[Tensor, "R H"],
        valid: Bool[Tensor, "C F"],
        choice: Int64[Tensor, "C kept"],
    ) -> None:
        """The type layers' outputs of the chosen: of those unread, or just read."""
        known = self._hidden.flatten(0, 1)
        before = torch.arange(len(known), device=choice.device).view(len(choice), -1)
        read = (len(known) - 1 + valid.flatten().cumsum(0)).view(valid.shape).clamp_min(0)
        source = torch.cat((before, read, read), 1).gather(1, choice)
        self._hidden = torch.cat((known, hidden))[source]

    def look(self, where: Bool[Tensor, "C"]) -> None:
        """The token layers read what they predict the next token of some ready contexts from."""
        wanted = self.beam.alive & where.unsqueeze(1)
        rows = torch.arange(wanted.shape[1], device=wanted.device).expand_as(wanted)
        features, slots = self.beam.token_features(self._hidden[wanted], rows, wanted)
        self._looked = _Looked(wanted, features, slots)

    def next_log_p(self) -> Float[Tensor, "C V"]:
        """log p(token | tokens so far) of every token, for the contexts looked at; else 0."""
        looked = self._look_of_now()
        weight = self.model.embedding.weight
        weights = self.beam.log_p - self.beam.log_p.logsumexp(1, keepdim=True)
        log_p = weights.new_zeros(len(weights), len(weight))
        counts: list[int] = looked.where.sum(1).tolist()
        parts = zip(looked.features.split(counts), weights, looked.where, strict=True)
        for number, (features, of_context, here) in enumerate(parts):
            if len(features):
                logits = at_least_fp32(features @ weight.T).log_softmax(-1)
                log_p[number] = (logits + of_context[here].unsqueeze(1)).logsumexp(0)
        return log_p

    def write(self, tokens: Int64[Tensor, "C"]) -> None:
        """The contexts looked at write a token each; the others' entries stand for nothing."""
        looked, beam = self._look_of_now(), self.beam
        where = looked.where.any(1)
        of_each = tokens.unsqueeze(1).expand_as(beam.pending)
        scores = beam.token_scores(looked.features, of_each[looked.where])
        every = torch.arange(len(looked.features), device=tokens.device)
        log_p = beam.log_p.clone()
        log_p[looked.where] += scores.exact(every)
        beam.write(of_each, log_p, looked.slots, looked.where)
        self._looked = None
        self.log_p = torch.where(where, beam.log_p.logsumexp(1), self.log_p)
        self.words = self.words + where
        self.last_token = torch.where(where, tokens, self.last_token)
        opened = looked.where & (self._sentence_start == self.words.unsqueeze(1) - 1)
        opened &= (self.words > 1).unsqueeze(1)
        if bool((opened.sum(1) > self.sentence_beam).any()):
            beam.merge(opened, self.sentence_beam)
        beam.compact()

    def select(self, contexts: Int64[Tensor, "new"]) -> None:
        """The contexts become those of these numbers; the same one may stand several times."""
        for name in ("words", "last_token", "log_p", "_sentence_start", "_hidden"):
            setattr(self, name, getattr(self, name).index_select(0, contexts))
        self.beam.select_contexts(contexts)
        self._looked = None

    def _look_of_now(self) -> _Looked:
        if self._looked is None:
            raise RuntimeError("look() comes before the next token")
        return self._looked

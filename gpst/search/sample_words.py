"""Word-level search with random sampling (paper 3.4): words are drawn, trees are searched.

A beam of hypotheses reads a prompt as in gpst/search/parse.py. From there on, hypotheses go up
until all want to write; the next word is drawn from the mixture of their predictions, each weighted
with its probability, and all of them write it. So a word is drawn from p(word | words before it),
summed over the trees in the beam. Prompts may differ in length: all contexts are a word further
after each phase, whether they read or write.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.layers.transformer import at_least_fp32
from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.beam import Beam
from gpst.search.candidates import COMP, Candidates, Reading
from gpst.search.constraints import Context, TextTables
from gpst.search.generate import Generation, replay
from gpst.search.sampling import Sampling, drawn_from
from gpst.search.vocabulary import log_p_of

_UNDRAWN = -3
"""The pending word of a hypothesis that waits for the drawing."""


@torch.no_grad()
def sample_words(
    model: GPSTModel,
    prompts: Sequence[Context],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    seeds: Sequence[int] | None = None,
    final_tokens: Collection[int] = (),
    end_token: int | None = None,
    beam: int = 20,
) -> list[Generation]:
    """Continues prompts, all at once; dropout is off.

    Args:
        prompts: sentences of token ids; the last sentence of each goes on.
        max_new_tokens: fewer are written where `end_token` comes.
        sampling: temperature, top-k and top-p of the words; its seed is for all prompts alike.
        seeds: one a prompt, instead; then a text does not depend on what it shares a batch with.
        final_tokens: tokens that may end a sentence.
        end_token: the token that ends a document; a text ends after it.
    Returns:
        a generation for each prompt, with the trees of its best hypothesis.
    Raises:
        ValueError: an empty prompt, one that is too long for the continuation, beam < 1.
    """
    if beam < 1 or max_new_tokens < 1:
        raise ValueError(f"beam {beam}, max_new_tokens {max_new_tokens}: both must be at least 1")
    own_seeds = [sampling.seed] * len(prompts) if seeds is None else list(seeds)
    with evaluating(model):
        writer = _WordSampler(model, prompts, max_new_tokens, beam, final_tokens, end_token)
        writer.run(sampling, [torch.Generator().manual_seed(seed) for seed in own_seeds])
        return writer.results(prompts, final_tokens)


class _WordSampler:
    def __init__(
        self,
        model: GPSTModel,
        prompts: Sequence[Context],
        max_new_tokens: int,
        beam: int,
        final_tokens: Collection[int],
        end_token: int | None,
    ):
        limit = model.config.max_context_tokens
        longest = max((sum(map(len, prompt)) for prompt in prompts), default=0)
        if longest + max_new_tokens > limit:
            raise ValueError(
                f"a prompt of {longest} tokens and {max_new_tokens} new ones are more than the "
                f"model takes (max_context_tokens {limit}); shorten the prompt"
            )
        device = model.embedding.weight.device
        self.model, self.size = model, beam
        self.tables = TextTables.of(prompts, None, limit, device)
        self.max_new, self.end_token = max_new_tokens, end_token
        self.beam = Beam(model, len(prompts), beam)
        lengths = self.tables.lengths
        more = longest + max_new_tokens + 2 - self.tables.next_token.shape[1]
        tables = (self.tables.next_token, self.tables.gen_limit, self.tables.comp_limit)
        self.next_token, self.gen_limit, self.comp_limit = (F.pad(t, (0, more)) for t in tables)
        self.is_final = torch.zeros(len(model.embedding.weight), dtype=torch.bool, device=device)
        self.is_final[sorted(final_tokens)] = True
        starts = lengths - torch.tensor([len(p[-1]) for p in prompts], device=device)
        self.sentence_start = starts.unsqueeze(1).expand(-1, beam).clone()
        self.last_token = torch.tensor([p[-1][-1] for p in prompts], device=device)
        self.done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self.features = model.embedding.weight.new_zeros(
            len(prompts), beam, model.config.hidden_dim
        )
        self.written: list[list[int]] = [[] for _ in prompts]

    def run(self, sampling: Sampling, random: Sequence[torch.Generator]) -> None:
        """Reads and writes word by word until every text has ended."""
        words = 0
        while not bool(self.done.all()):
            active = self.beam.alive & ~self.done.unsqueeze(1)
            while bool(active.any()):
                self._expand(active)
                active = self.beam.alive & (self.beam.pending == COMP) & ~self.done.unsqueeze(1)
            writes = (self.tables.lengths <= words) & ~self.done
            for context in writes.nonzero().flatten().tolist():
                self._draw(context, sampling, random[context])
            self.beam.compact()
            words += 1

    def _expand(self, active: Bool[Tensor, "C b"]) -> None:
        """The active hypotheses go up or want to write; the best of all are kept."""
        beam = self.beam
        reading = beam.read(active)
        start = self.sentence_start.gather(1, reading.rows)
        free = reading.words >= self.tables.lengths.unsqueeze(1)
        comp = reading.start > torch.where(free, start, self.comp_limit.gather(1, reading.words))
        gen = free | (reading.start <= self.gen_limit.gather(1, reading.words))
        gen &= reading.valid
        features, slots = beam.token_features(reading, gen)
        features = reading.table(features, gen)
        candidates = Candidates.joined(
            [
                beam.unread(active),
                reading.comp(comp & reading.valid),
                self._gen(reading, gen, free, features, slots),
            ]
        )
        size = min(self.size, candidates.log_p.shape[1])
        choice = candidates.log_p.topk(size, dim=1).indices
        final = self.is_final[self.last_token].unsqueeze(1)
        fresh = free & final & (reading.start == start)
        starts = (self.sentence_start, start, torch.where(fresh, reading.words, start))
        self.sentence_start = torch.cat(starts, 1).gather(1, choice)
        known = torch.cat((self.features, torch.zeros_like(features), features), 1)
        wide = choice.unsqueeze(2).expand(-1, -1, known.shape[2])
        self.features = known.gather(1, wide)
        beam.keep(candidates, choice)

    def _gen(
        self,
        reading: Reading,
        allowed: Bool[Tensor, "C F"],
        free: Bool[Tensor, "C F"],
        features: Float[Tensor, "C F H"],
        slots: Int64[Tensor, "C F"],
    ) -> Candidates:
        """The prompt's next word with its probability, or a word that is not drawn yet."""
        log_p = (reading.log_p + reading.gen_log_p).masked_fill(~allowed, -torch.inf)
        prompt_tokens = self.next_token.gather(1, reading.words)
        known = allowed & ~free
        log_p[known] += log_p_of(self.model, features[known], prompt_tokens[known])
        pending = torch.where(free, _UNDRAWN, prompt_tokens)
        return Candidates(log_p, reading.rows, pending, reading.words + 1, reading.slots, slots)

    def _draw(self, context: int, sampling: Sampling, random: torch.Generator) -> None:
        """Draws a context's next word, which all its hypotheses write."""
        beam = self.beam
        logits = at_least_fp32(self.features[context] @ self.model.embedding.weight.T)
        each = logits.to(torch.float64).log_softmax(-1)
        mixed = torch.logsumexp(each + beam.log_p[context].unsqueeze(1), 0)
        word = int(drawn_from(mixed.cpu().unsqueeze(0), sampling, random)[0])
        beam.log_p[context] += each[:, word]
        beam.pending[context] = word
        self.last_token[context] = word
        self.written[context].append(word)
        full = len(self.written[context]) >= self.max_new
        self.done[context] = full or word == self.end_token

    def results(
        self, prompts: Sequence[Context], final_tokens: Collection[int]
    ) -> list[Generation]:
        generations = []
        for number, (prompt, words) in enumerate(zip(prompts, self.written, strict=True)):
            best = int(self.beam.log_p[number].argmax())
            actions = self.beam.actions(number, best)
            sentences, trees = replay(actions, prompt, final_tokens)
            log_p = float(self.beam.log_p[number, best])
            generations.append(Generation(words, sentences, trees, log_p))
        return generations

"""Word-level search with random sampling (paper 3.4): words are drawn, trees are searched.

Words are drawn from p(word | words before it) as gpst/search/words.py has it, summed over the trees
in the beam. Prompts may differ in length: contexts read and write independently of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F

from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.constraints import Context, check_contexts
from gpst.search.generate import Generation, replay
from gpst.search.sampling import Sampling, drawn_from
from gpst.search.score import text_tables
from gpst.search.words import OPEN, WordSearch


@torch.inference_mode()
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
        prompts: sentences of token ids, or none; the last sentence of each may go on.
        max_new_tokens: fewer are written where `end_token` comes.
        sampling: temperature, top-k and top-p of the words; its seed is for all prompts alike.
        seeds: one a prompt, instead; then a text does not depend on what it shares a batch with.
        final_tokens: tokens that may end a sentence.
        end_token: the token that ends a document; a text ends after it.
    Returns:
        a generation for each prompt, with the trees of its best hypothesis.
    Raises:
        ValueError: an empty sentence, a prompt that is too long for the continuation, beam < 1.
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
        self.lengths = check_contexts(prompts, limit, prompts=True)
        if max(self.lengths) + max_new_tokens > limit:
            raise ValueError(
                f"a prompt of {max(self.lengths)} tokens and {max_new_tokens} new ones are more "
                f"than the model takes (max_context_tokens {limit}); shorten the prompt"
            )
        self.search = WordSearch(model, len(prompts), beam, final_tokens=final_tokens)
        device = self.search.words.device
        tokens, places = text_tables(prompts, self.lengths, device)
        self.tokens, self.places = (F.pad(table, (0, max_new_tokens)) for table in (tokens, places))
        numbers = torch.arange(self.places.shape[1], device=device)
        self.is_new = numbers >= torch.tensor(self.lengths, device=device).unsqueeze(1)
        self.places[self.is_new] = OPEN
        self.max_new, self.end_token = max_new_tokens, end_token
        self.written: list[list[int]] = [[] for _ in prompts]

    def run(self, sampling: Sampling, random: Sequence[torch.Generator]) -> None:
        """Reads and writes word by word until every text has ended."""
        search = self.search
        done = torch.zeros_like(search.words, dtype=torch.bool)
        while not bool(done.all()):
            if bool((ready := search.ready & ~done).any()):
                column = search.words.unsqueeze(1)
                tokens = self.tokens.gather(1, column).squeeze(1)
                search.look(ready)
                draws = ready & self.is_new.gather(1, column).squeeze(1)
                if bool(draws.any()):
                    log_p = search.next_log_p().cpu()
                    for context in draws.nonzero().flatten().tolist():
                        [word] = drawn_from(log_p[context : context + 1], sampling, random[context])
                        tokens[context] = word
                        self.written[context].append(int(word))
                search.write(tokens)
                full = [len(words) >= self.max_new for words in self.written]
                ended = [words[-1:] == [self.end_token] for words in self.written]
                done = torch.tensor([f or e for f, e in zip(full, ended, strict=True)]).to(done)
            if bool((going := ~search.ready & ~done).any()):
                places = self.places.gather(1, search.words.unsqueeze(1)).squeeze(1)
                search.go_up(places, going)

    def results(
        self, prompts: Sequence[Context], final_tokens: Collection[int]
    ) -> list[Generation]:
        generations = []
        beam = self.search.beam
        for number, (prompt, words) in enumerate(zip(prompts, self.written, strict=True)):
            best = int(beam.log_p[number].argmax())
            sentences, trees = replay(beam.actions(number, best), prompt, final_tokens)
            log_p = float(beam.log_p[number, best])
            generations.append(Generation(words, sentences, trees, log_p))
        return generations

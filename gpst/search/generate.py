"""Generation of text together with its trees: ancestral sampling, and beam search (paper 3.4).

Where one constituent is left on the stack, the next GEN starts a new sentence if the last token may
end one (the caller says which tokens may); otherwise it continues the sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from gpst.layers.transformer import at_least_fp32
from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.beam import Beam
from gpst.search.candidates import COMP, Candidates, Reading
from gpst.search.constraints import Context
from gpst.search.parse import read_prompt
from gpst.search.sampling import Sampling, drawn_from
from gpst.tree import Tree

NOTHING = -3

OnToken = Callable[[int, int], None]
"""Called with (number of the sample, token) as tokens are written."""


@dataclass(frozen=True)
class Generation:
    """A prompt and its continuation."""

    tokens: list[int]
    """The new tokens."""
    sentences: list[list[int]]
    """Prompt and continuation."""
    trees: list[Tree]
    """A tree for each sentence; what the last one lacks is added to the right, without a model."""
    log_p: float
    """log p(tokens, actions) of prompt and continuation as far as they were generated, nats."""


@torch.inference_mode()
def generate(
    model: GPSTModel,
    prompt: Context,
    *,
    max_new_tokens: int,
    final_tokens: Collection[int] = (),
    end_token: int | None = None,
    sampling: Sampling | None = None,
    num_samples: int = 1,
    beam: int = 20,
    sync: bool = True,
    on_token: OnToken | None = None,
) -> list[Generation]:
    """Continues a prompt.

    Args:
        prompt: sentences of token ids; may be empty. Its last sentence may go on.
        max_new_tokens: fewer are written where `end_token` comes or the context is full.
        final_tokens: tokens that may end a sentence.
        end_token: the token that ends a document; generation stops after it.
        sampling: draw `num_samples` continuations, action by action, each from a tree of the prompt
            drawn from the beam; None: search for the most probable one.
        beam: hypotheses of the search, and of reading the prompt.
        sync: compare hypotheses at equal numbers of tokens; false: at equal numbers of actions.
        on_token: hears of every token as it is drawn (sampling only).
    Returns:
        `num_samples` samples; or the hypotheses of the beam, best first, at most `num_samples`.
    Raises:
        ValueError: a prompt that fills the context, a number out of range.
    """
    limit = model.config.max_context_tokens
    length = sum(len(sentence) for sentence in prompt)
    for name, value in (("max_new_tokens", max_new_tokens), ("num_samples", num_samples)):
        if value < 1:
            raise ValueError(f"{name}: {value} is not allowed; it must be at least 1")
    if length >= limit:
        raise ValueError(
            f"the prompt has {length} tokens; the model takes {limit} (max_context_tokens) with "
            "the continuation, so shorten the prompt"
        )
    with evaluating(model):
        writer = _Writer(
            model, prompt, final_tokens, end_token, min(length + max_new_tokens, limit)
        )
        if sampling is None:
            writer.search(beam, sync)
            return writer.best(num_samples)
        writer.sample(num_samples, beam, sampling, on_token)
        return [writer.generation(number, 0) for number in range(num_samples)]


class _Writer:
    def __init__(
        self,
        model: GPSTModel,
        prompt: Context,
        final_tokens: Collection[int],
        end_token: int | None,
        limit: int,
    ):
        self.model, self.prompt, self.limit = model, prompt, limit
        self.prompt_length = sum(len(sentence) for sentence in prompt)
        self.final_tokens = frozenset(final_tokens)
        self.end_token = NOTHING if end_token is None else end_token
        device = model.embedding.weight.device
        self.is_final = torch.zeros(len(model.embedding.weight), dtype=torch.bool, device=device)
        self.is_final[sorted(self.final_tokens)] = True

    def _read_prompt(self, num_contexts: int, beam: int) -> None:
        if len(self.prompt):
            self.beam = read_prompt(self.model, [self.prompt] * num_contexts, beam)
        else:
            self.beam = Beam(self.model, num_contexts, beam)
        start = self.prompt_length - len(self.prompt[-1]) if len(self.prompt) else 0
        self.sentence_start = torch.full_like(self.beam.words, start)

    def _active(self) -> Bool[Tensor, "C b"]:
        beam = self.beam
        new = beam.words > self.prompt_length
        full = (beam.words >= self.limit) & (beam.pending != COMP)
        return beam.alive & ~full & ~(new & (beam.pending == self.end_token))

    def _rules(self, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
        """Whether COMP is possible; starts of the sentence after COMP and after GEN; (C, F)."""
        start = self.sentence_start.gather(1, reading.rows)
        last = self.last_token.gather(1, reading.rows)
        final = self.is_final[last.clamp_min(0)] & (last >= 0)
        fresh = final & (reading.start == start)
        return reading.start > start, start, torch.where(fresh, reading.words, start)

    # -- sampling: one hypothesis a context

    def sample(
        self, num_samples: int, beam: int, sampling: Sampling, on_token: OnToken | None
    ) -> None:
        device = self.model.embedding.weight.device
        random = torch.Generator(device).manual_seed(sampling.seed)
        self._read_prompt(num_samples, beam)
        everything = torch.zeros_like(self.beam.log_p, dtype=torch.bool)
        chances = torch.softmax(self.beam.log_p, 1)
        self.beam.keep(
            self.beam.unread(everything), torch.multinomial(chances, 1, generator=random)
        )
        self.sentence_start = self.sentence_start[:, :1]
        self.last_token = self.beam.pending.clone()
        active = self._active()
        while bool(active.any()):
            wrote = self._draw(active, sampling, random)
            self.beam.compact()
            if on_token is not None:
                for number in wrote.squeeze(1).nonzero().flatten().tolist():
                    on_token(number, int(self.beam.pending[number, 0]))
            active = self._active()

    def _draw(
        self, active: Bool[Tensor, "C 1"], sampling: Sampling, random: torch.Generator
    ) -> Bool[Tensor, "C 1"]:
        """One more action for each active context; returns which of them wrote a token."""
        beam = self.beam
        reading = beam.read(active)
        comp, start, start_after_gen = self._rules(reading)
        types = torch.stack((reading.gen_log_p, reading.comp_log_p), -1)
        types = types.masked_fill(torch.stack((comp & False, ~comp), -1), -torch.inf)
        goes_up = drawn_from(types, Sampling(sampling.temperature), random) == 1
        gen = reading.valid & ~goes_up
        token = torch.full_like(beam.pending, COMP)
        log_p = reading.log_p + reading.comp_log_p
        token_slot = torch.full_like(token, -1)
        if bool(gen.any()):
            features, slots = beam.token_features(
                reading.hidden[gen[reading.valid]], reading.rows, gen
            )
            logits = at_least_fp32(features @ self.model.embedding.weight.T)
            drawn = drawn_from(logits, sampling, random)
            token[gen] = drawn
            token_log_p = F.log_softmax(logits.to(torch.float64), -1).gather(1, drawn[:, None])
            log_p[gen] = (reading.log_p + reading.gen_log_p)[gen] + token_log_p[:, 0]
            token_slot[gen] = slots[gen]
        step = Candidates(
            log_p, reading.rows, token, reading.words + gen, reading.slots, token_slot
        )
        choice = torch.where(active, 1, 0)
        beam.keep(Candidates.joined([beam.unread(active), step]), choice)
        self.sentence_start = torch.where(gen, start_after_gen, start)
        self.last_token = torch.where(gen, token, self.last_token)
        return gen

    # -- search

    def search(self, beam: int, sync: bool) -> None:
        self._read_prompt(1, beam)
        self.last_token = self.beam.pending.clone()
        active = self._active()
        while bool(active.any()):
            self._expand(active, beam)
            active = self._active()
            if sync:
                # The others wait until all have written the token.
                going_up = active & (self.beam.pending == COMP)
                active = going_up if bool(going_up.any()) else active
            self.beam.compact()

    def _expand(self, active: Bool[Tensor, "C b"], size: int) -> None:
        beam = self.beam
        reading = beam.read(active)
        comp, start, start_after_gen = self._rules(reading)
        last = self.last_token.gather(1, reading.rows)
        gen = self._gen(reading, size)
        each = gen.log_p.shape[1] // reading.rows.shape[1]
        candidates = Candidates.joined(
            [beam.unread(active), reading.comp(comp & reading.valid), gen]
        )
        starts = (self.sentence_start, start, start_after_gen.repeat_interleave(each, 1))
        lasts = (self.last_token, last, gen.pending)
        choice = candidates.log_p.topk(min(size, candidates.log_p.shape[1]), dim=1).indices
        self.sentence_start = torch.cat(starts, 1).gather(1, choice)
        self.last_token = torch.cat(lasts, 1).gather(1, choice)
        beam.keep(candidates, choice)

    def _gen(self, reading: Reading, size: int) -> Candidates:
        """GEN of the most probable tokens of every hypothesis that was read: (C, F * each)."""
        features, slots = self.beam.token_features(reading.hidden, reading.rows, reading.valid)
        features = reading.table(features, reading.valid)
        logits = at_least_fp32(features @ self.model.embedding.weight.T)
        best, tokens = logits.topk(min(size, logits.shape[-1]), dim=-1)
        token_log_p = best.to(torch.float64) - logits.logsumexp(-1, keepdim=True).to(torch.float64)
        log_p = token_log_p + (reading.log_p + reading.gen_log_p).unsqueeze(-1)

        def wide(values: Tensor) -> Tensor:
            return values.repeat_interleave(tokens.shape[-1], 1)

        return Candidates(
            log_p.flatten(1),
            wide(reading.rows),
            tokens.flatten(1),
            wide(reading.words + 1),
            wide(reading.slots),
            wide(slots),
        )

    # -- results

    def best(self, number: int) -> list[Generation]:
        order = self.beam.log_p[0].argsort(descending=True)[:number].tolist()
        alive = self.beam.alive[0].tolist()
        return [self.generation(0, hypothesis) for hypothesis in order if alive[hypothesis]]

    def generation(self, context: int, hypothesis: int) -> Generation:
        actions = self.beam.actions(context, hypothesis)
        sentences, trees = replay(actions, self.prompt, self.final_tokens)
        tokens = [action for action in actions if action != COMP]
        log_p = float(self.beam.log_p[context, hypothesis])
        return Generation(tokens[self.prompt_length :], sentences, trees, log_p)


def replay(
    actions: Sequence[int], prompt: Context, final_tokens: Collection[int]
) -> tuple[list[list[int]], list[Tree]]:
    """Sentences and trees of an action sequence; constituents that are left over are joined."""
    known = [len(sentence) for sentence in prompt]
    # Tokens of the prompt after which a sentence is known to start.
    starts = {sum(known[:number]) for number in range(1, len(known))}
    length = sum(known)
    sentences: list[list[int]] = []
    tree_types: list[list[int]] = []
    height, count = 0, 0
    for action in actions:
        if action == COMP:
            tree_types[-1].append(1)
            height -= 1
            continue
        closed = height == 1 and count >= length and sentences[-1][-1] in final_tokens
        if not sentences or count in starts or closed:
            sentences.append([])
            tree_types.append([])
            height = 0
        sentences[-1].append(action)
        tree_types[-1].append(0)
        height += 1
        count += 1
    if tree_types:
        tree_types[-1] += [1] * (height - 1)
    return sentences, [Tree.from_actions(types) for types in tree_types]

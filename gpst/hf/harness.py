"""The model `gpst` for lm-evaluation-harness; needs the extra `eval`.

    python -m gpst.hf.harness --model gpst --model_args pretrained=DIR,beam=20 --tasks lambada

Log likelihoods come from word-level search with one history (gpst/search/parse.py): the model from
left to right, with its trees marginalised over the beam.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from gpst.hf.interface import GPST
from gpst.search.batches import search_texts
from gpst.search.generate import generate
from gpst.search.sampling import Sampling


@register_model("gpst")
class HarnessModel(LM):
    """An exported GPST as the harness asks it.

    Args:
        pretrained: folder made by launch/convert.sh to-hf.
        beam: hypotheses of the search.
        device: cpu or cuda; by default a GPU when there is one.
        dtype: of matrix products, fp32 or bf16.
        max_gen_toks: tokens of a continuation where the task does not say.
    """

    def __init__(
        self,
        pretrained: str,
        beam: int = 20,
        device: str | None = None,
        dtype: str = "fp32",
        max_gen_toks: int = 128,
        **_: Any,
    ):
        super().__init__()
        self.gpst = GPST.from_pretrained(pretrained, device, dtype)
        self.beam, self.max_new_tokens = int(beam), int(max_gen_toks)
        self.limit = self.gpst.model.config.max_context_tokens

    def _sentences(self, text: str) -> list[list[int]]:
        return [sentence.tokens for sentence in self.gpst.codec.sentences(text)]

    def _prefixes(self, contexts: Sequence[list[list[int]]], quiet: bool) -> list[Any]:
        """For each context, log p of the tokens up to each, nats."""
        bar = tqdm(total=len(contexts), disable=quiet, file=sys.stderr)
        found = search_texts(
            self.gpst.model,
            contexts,
            beam=self.beam,
            histories=1,
            on_done=bar.update,
        )
        bar.close()
        return [result.prefix_log_p for result in found]

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """log p(continuation | context), nats, and whether it is what greedy generation writes."""
        contexts, new = [], []
        for request in requests:
            before, after = request.args
            # White space goes with the word after it, as in the tokenizer.
            stripped = before.rstrip()
            before, after = stripped, before[len(stripped) :] + after
            sentences = self._sentences(before + after)
            total = sum(map(len, sentences))
            given = min(
                len(self.gpst.codec.tokenizer.encode(before).ids) if before else 0, total - 1
            )
            if total - given > self.limit:
                raise ValueError(
                    f"a continuation has {total - given} tokens, but the model takes {self.limit}"
                )
            contexts.append(last_tokens(sentences, self.limit))
            new.append(total - given)
        prefixes = self._prefixes(contexts, disable_tqdm)
        results = []
        for context, number, prefix in zip(contexts, new, prefixes, strict=True):
            start = len(prefix) - number
            log_p = float(prefix[-1] - (prefix[start - 1] if start else 0.0))
            results.append((log_p, self._is_greedy(context, start)))
        return results

    def _is_greedy(self, context: list[list[int]], start: int) -> bool:
        tokens = [token for sentence in context for token in sentence]
        prompt = first_tokens(context, start)
        written = self._write(prompt, len(tokens) - start, Sampling(temperature=0.0))
        return written == tokens[start:]

    def _write(self, prompt: list[list[int]], number: int, sampling: Sampling) -> list[int]:
        [one] = generate(
            self.gpst.model,
            prompt,
            max_new_tokens=number,
            final_tokens=self.gpst.final_tokens,
            end_token=self.gpst.end_token,
            sampling=sampling,
            beam=self.beam,
        )
        return one.tokens

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, nats; a long one in windows that know nothing of each other."""
        windows, owners = [], []
        for number, request in enumerate(requests):
            sentences = self._sentences(request.args[0])
            while sentences:
                window = first_tokens(sentences, self.limit)
                sentences = last_tokens(sentences, sum(map(len, sentences)) - sum(map(len, window)))
                windows.append(window)
                owners.append(number)
        sums = [0.0] * len(requests)
        for owner, prefix in zip(owners, self._prefixes(windows, disable_tqdm), strict=True):
            sums[owner] += float(prefix[-1])
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations up to the first of the stop strings."""
        written = []
        for request in tqdm(requests, disable=disable_tqdm, file=sys.stderr):
            prompt, options = request.args
            stops = options.get("until") or []
            stops = [stops] if isinstance(stops, str) else stops
            number = min(int(options.get("max_gen_toks", self.max_new_tokens)), self.limit - 1)
            warm = options.get("do_sample", False)
            sampling = Sampling(
                float(options.get("temperature", 1.0)) if warm else 0.0,
                options.get("top_k") if warm else None,
                options.get("top_p") if warm else None,
            )
            given = last_tokens(self._sentences(prompt), self.limit - number)
            text = self.gpst.codec.decode(self._write(given, number, sampling))
            ends = [text.index(stop) for stop in stops if stop and stop in text]
            written.append(text[: min(ends, default=len(text))])
        return written


def first_tokens(sentences: list[list[int]], number: int) -> list[list[int]]:
    """The beginning of a text; its last sentence may be cut."""
    found = []
    for sentence in sentences:
        if number <= 0:
            break
        found.append(sentence[:number])
        number -= len(sentence)
    return found


def last_tokens(sentences: list[list[int]], number: int) -> list[list[int]]:
    """The end of a text; its first sentence may be cut."""
    backwards = [sentence[::-1] for sentence in sentences[::-1]]
    return [sentence[::-1] for sentence in first_tokens(backwards, number)[::-1]]


def main() -> None:
    """The harness' own command line, which then knows the model `gpst`."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    # Run as a script this is another module than the one that others import.
    from gpst.hf import harness

    harness.main()

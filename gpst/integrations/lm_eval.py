"""The model `gpst` for lm-evaluation-harness; needs the extra `eval`.

    python -m gpst.integrations.lm_eval --model gpst --model_args pretrained=DIR --tasks lambada

Log likelihoods are those of gpst/search/score.py: the model from left to right, with its trees
summed over a beam.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from tqdm import tqdm

from gpst.api import GPST
from gpst.cli.arguments import EXIT_DATA, EXIT_INTERRUPTED, EXIT_USAGE
from gpst.cli.commands import say
from gpst.cli.process import end_process
from gpst.cli.threads import use_threads
from gpst.export.errors import ModelFolderError
from gpst.search.batches import in_order, score_batches
from gpst.search.sample_words import sample_words
from gpst.search.sampling import Sampling
from gpst.search.score import TextScore

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    missing = f"{str(error.name).partition('.')[0]} is missing; pip install 'gpst[eval]'"
    if __name__ == "__main__":
        sys.exit(say("harness", missing, EXIT_USAGE))
    raise ImportError(missing, name=error.name) from error


class ArgumentError(ValueError):
    """The harness' --model_args are wrong."""


@register_model("gpst")
class HarnessModel(LM):
    """An exported GPST as the harness asks it.

    Args:
        pretrained: folder made by launch/convert.sh to-hf.
        beam: hypotheses of the search.
        device: cpu or cuda; by default a GPU when there is one.
        dtype: of matrix products, fp32 or bf16.
        max_gen_toks: tokens of a continuation where the task does not say.
        batch_size, max_batch_size: the harness gives them; batches are formed by length here.
    Raises:
        ModelFolderError: no folder, or not one of ours.
        ArgumentError: a number below 1, an unknown argument, a device that is not here.
    """

    def __init__(
        self,
        pretrained: str = "",
        beam: int = 20,
        device: str | None = None,
        dtype: str = "fp32",
        max_gen_toks: int = 128,
        batch_size: object = None,
        max_batch_size: object = None,
        **unknown: object,
    ):
        super().__init__()
        for name in unknown:
            raise ArgumentError(f"model_args: {name!r} is not known; known are {', '.join(_KNOWN)}")
        if not pretrained:
            raise ModelFolderError(
                "model_args: pretrained=DIR is missing; name a folder that launch/convert.sh to-hf "
                "has made"
            )
        # The harness asks for its first GPU where nobody has named a device.
        chosen = None if device == "cuda:0" else device
        try:
            self.gpst = GPST.from_pretrained(pretrained, chosen, dtype)
        except ModelFolderError:
            raise
        except ValueError as error:
            raise ArgumentError(f"model_args: {error}") from error
        use_threads(self.gpst.model.config.hidden_dim, self.gpst.device)
        self.beam = _at_least_one("beam", beam)
        self.max_new_tokens = _at_least_one("max_gen_toks", max_gen_toks)
        self.limit = self.gpst.model.config.max_context_tokens

    def _sentences(self, text: str) -> list[list[int]]:
        return [sentence.tokens for sentence in self.gpst.codec.sentences(text)]

    def _scores(
        self, contexts: Sequence[list[list[int]]], quiet: bool, compare: bool
    ) -> list[TextScore]:
        bar = tqdm(total=len(contexts), disable=quiet, file=sys.stderr)
        batch_scores = score_batches(self.gpst.model, contexts, beam=self.beam, compare=compare)
        scores = in_order(batch_scores, bar.update)
        bar.close()
        return scores

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """log p(continuation | context), nats, and whether it is what greedy generation writes."""
        contexts: dict[int, list[list[int]]] = {}
        new: dict[int, int] = {}
        for number, request in enumerate(requests):
            before, after = request.args
            if not after:
                continue
            # White space goes with the word after it, as in the tokenizer.
            stripped = before.rstrip()
            before, after = stripped, before[len(stripped) :] + after
            sentences = self._sentences(before + after)
            total = sum(map(len, sentences))
            given = self.gpst.codec.tokenizer.encode(before).ids if before else []
            if [token for sentence in sentences for token in sentence] == given:
                continue  # White space that has no tokens.
            num_given = min(len(given), total - 1)
            new[number] = total - num_given
            if new[number] > self.limit:
                raise ValueError(
                    f"a continuation has {new[number]} tokens, but the model takes {self.limit}"
                )
            contexts[number] = last_tokens(sentences, self.limit)
        results = [(0.0, True)] * len(requests)  # as of an empty continuation
        scores = self._scores(list(contexts.values()), disable_tqdm, compare=True)
        for number, score in zip(contexts, scores, strict=True):
            assert score.most_probable is not None
            tokens = slice(len(score.log_p) - new[number], None)
            log_p = float(score.log_p[tokens].sum())
            results[number] = log_p, bool(score.most_probable[tokens].all())
        return results

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
        scores = self._scores(windows, disable_tqdm, compare=False)
        for owner, score in zip(owners, scores, strict=True):
            sums[owner] += float(score.log_p.sum())
        return sums

    def _write(self, prompt: list[list[int]], number: int, sampling: Sampling) -> list[int]:
        [one] = sample_words(
            self.gpst.model,
            [prompt],
            max_new_tokens=number,
            final_tokens=self.gpst.final_tokens,
            end_token=self.gpst.end_token,
            sampling=sampling,
            beam=self.beam,
        )
        return one.tokens

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations up to the first of the stop strings."""
        written = []
        for request in tqdm(requests, disable=disable_tqdm, file=sys.stderr):
            prompt, options = request.args
            stops = options.get("until") or []
            stops = [stops] if isinstance(stops, str) else stops
            number = int(options.get("max_gen_toks", self.max_new_tokens))
            if number >= self.limit:
                _say_once(f"max_gen_toks {number}: the model takes {self.limit} tokens in all")
                number = self.limit - 1
            if number == 0:
                written.append("")
                continue
            warm = options.get("do_sample", False)
            sampling = Sampling(
                float(options.get("temperature", 1.0)) if warm else 0.0,
                options.get("top_k") if warm else None,
                options.get("top_p") if warm else None,
                # Of torch's generator, which the harness' --seed sets: samples are not all equal.
                seed=int(torch.randint(2**62, ())) if warm else 0,
            )
            context = last_tokens(self._sentences(prompt), self.limit - number)
            given = [token for sentence in context for token in sentence]
            text = self.gpst.codec.continuation(given, self._write(context, number, sampling))
            ends = [text.index(stop) for stop in stops if stop and stop in text]
            written.append(text[: min(ends, default=len(text))])
        return written


def first_tokens(sentences: list[list[int]], number: int) -> list[list[int]]:
    """The beginning of a text; its last sentence may be cut."""
    beginning = []
    for sentence in sentences:
        if number <= 0:
            break
        beginning.append(sentence[:number])
        number -= len(sentence)
    return beginning


def last_tokens(sentences: list[list[int]], number: int) -> list[list[int]]:
    """The end of a text; its first sentence may be cut."""
    backwards = [sentence[::-1] for sentence in sentences[::-1]]
    return [sentence[::-1] for sentence in first_tokens(backwards, number)[::-1]]


@cache
def _say_once(what: str) -> None:
    print(f"harness: {what}", file=sys.stderr)


_KNOWN = ("pretrained", "beam", "device", "dtype", "max_gen_toks")


def _at_least_one(name: str, value: object) -> int:
    number = int(str(value)) if str(value).isdigit() else 0
    if number < 1:
        raise ArgumentError(f"model_args: {name}={value} is no whole number of at least 1")
    return number


def main() -> int:
    """The harness' own command line, which then knows the model `gpst`; returns its exit code."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except (ModelFolderError, ArgumentError) as error:
        return say("harness", error, EXIT_USAGE)
    except ValueError as error:
        return say("harness", error, EXIT_DATA)
    except KeyboardInterrupt:
        return say("harness", "interrupted", EXIT_INTERRUPTED)
    return 0


if __name__ == "__main__":
    end_process(main())

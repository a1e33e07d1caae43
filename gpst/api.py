"""`from gpst import GPST`: an exported model with its tokenizer, for text in and results out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from gpst.export.codec import Codec, Sentence, check_length, check_texts
from gpst.export.errors import ModelFolderError
from gpst.export.huggingface import ModelFolder, open_model
from gpst.model.device import usable_device
from gpst.model.gpst import GPSTModel
from gpst.search.batches import batches, in_order, score_batches, search_batches
from gpst.search.generate import Generation, generate
from gpst.search.induced import inside_parse
from gpst.search.precision import multiply_in
from gpst.search.sampling import Sampling
from gpst.tree import Tree

Method = Literal["inside", "left-to-right"]
_INSIDE_SENTENCES = 256


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence and its tree over words."""

    words: list[str]
    tree: Tree
    log_p: float | None = None
    """log p(tokens, tree) of left-to-right parsing, nats."""

    def __str__(self) -> str:
        return self.tree.brackets(self.words)

    def picture(self) -> str:
        """The tree drawn with characters."""
        return self.tree.picture(self.words)


@dataclass(frozen=True)
class Constituent:
    """A constituent of a sentence and its vector."""

    text: str
    span: tuple[int, int]
    """First and last word."""
    vector: np.ndarray
    """(D,) the inside vector."""


@dataclass(frozen=True)
class WordSurprisal:
    """-log2 p(word | words before it), the sum over its tokens, in bits."""

    word: str
    bits: float


@dataclass(frozen=True)
class GeneratedText:
    """A continuation of a prompt."""

    text: str
    """The new text."""
    sentences: list[ParsedSentence]
    """Prompt and continuation, over tokens where a word is not one constituent."""
    log_p: float


class GPST:
    """A trained model and its tokenizer.

    >>> model = GPST.from_pretrained("runs/demo/export")        # doctest: +SKIP
    >>> print(model.parse("the old man the boats"))             # doctest: +SKIP
    """

    def __init__(
        self, model: GPSTModel, codec: Codec, final_tokens: Sequence[int], end_token: int | None
    ):
        self.model = model.eval()
        self.codec = codec
        self.final_tokens = frozenset(final_tokens)
        self.end_token = end_token

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path | ModelFolder,
        device: str | torch.device | None = None,
        dtype: str = "fp32",
    ) -> GPST:
        """Loads a folder that `launch/convert.sh to-hf` has made, or what was opened as one.

        Args:
            device: a GPU when there is one, by default.
            dtype: what the generative layers multiply in, fp32 or bf16 (docs/search.md).
        Raises:
            ValueError: another dtype; a device that is not here.
            ModelFolderError: it is not such a folder, is damaged, or holds a GPT-2 baseline.
        """
        chosen = usable_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        opened = folder if isinstance(folder, ModelFolder) else open_model(folder)
        model = opened.model()
        if not isinstance(model, GPSTModel):
            raise ModelFolderError(
                f"{opened.path} holds a GPT-2 baseline, which has no trees; give a GPST export"
            )
        model = multiply_in(model.to(chosen), dtype)
        return cls(model, opened.codec(), opened.final_tokens, opened.end_token)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.embedding.weight.device

    def parse(
        self, text: str, method: Method = "inside", *, beam: int = 20, sync: bool = True
    ) -> ParsedSentence:
        """The tree over the words of one sentence, see `parse_all`."""
        return self.parse_all([text], method, beam=beam, sync=sync)[0]

    def parse_all(
        self,
        texts: Sequence[str],
        method: Method = "inside",
        *,
        beam: int = 20,
        sync: bool = True,
        on_done: Callable[[int], None] | None = None,
    ) -> list[ParsedSentence]:
        """Trees over the words of sentences; the pieces of a word form one constituent.

        Args:
            method: `inside`: the composition model, which sees the whole sentence; `left-to-right`:
                the generative model, by word-level search.
            beam, sync: of the search.
            on_done: hears after each batch how many sentences it had.
        Raises:
            ValueError: an empty sentence, one longer than the model's context, unknown method.
        """
        check_texts(texts)
        sentences = [self.sentence(text) for text in texts]
        if method == "inside":
            return self._parse_inside(sentences, on_done)
        if method != "left-to-right":
            raise ValueError(f"method: {method!r} is not allowed; inside or left-to-right")
        batch_results = search_batches(
            self.model,
            [[s.tokens] for s in sentences],
            beam=beam,
            sync=sync,
            inside_word=[[s.inside_word] for s in sentences],
        )
        best = zip(sentences, (r.parses[0] for r in in_order(batch_results, on_done)), strict=True)
        return [
            ParsedSentence(s.words, p.trees[0].contract(s.word_of_token), p.log_p) for s, p in best
        ]

    def sentence(self, text: str) -> Sentence:
        """Words and tokens; raises ValueError where there are none, or more than a context has."""
        sentence = self.codec.sentence(text)
        check_length("sentence", [sentence], self.model.config.max_context_tokens)
        return sentence

    def _parse_inside(
        self, sentences: Sequence[Sentence], on_done: Callable[[int], None] | None
    ) -> list[ParsedSentence]:
        parsed: dict[int, ParsedSentence] = {}
        for batch in batches([len(s.tokens) for s in sentences], _INSIDE_SENTENCES):
            group = [sentences[k] for k in batch]
            inside_word = [s.inside_word for s in group]
            parses = inside_parse(self.model, [s.tokens for s in group], inside_word)
            for k, s, parse in zip(batch, group, parses, strict=True):
                parsed[k] = ParsedSentence(s.words, parse.tree.contract(s.word_of_token))
            if on_done is not None:
                on_done(len(batch))
        return [parsed[k] for k in range(len(sentences))]

    def embed(self, text: str) -> list[Constituent]:
        """The constituents of a sentence's induced tree, words included, in post-order."""
        sentence = self.sentence(text)
        [parse] = inside_parse(self.model, [sentence.tokens], [sentence.inside_word])
        words = sentence.word_of_token
        vectors = parse.vectors.float().cpu().numpy()
        constituents = []
        for (i, j), vector in zip(parse.tree.spans, vectors, strict=True):
            starts = i == 0 or words[i - 1] != words[i]
            ends = j + 1 == len(words) or words[j + 1] != words[j]
            if starts and ends:
                span = words[i], words[j]
                text = " ".join(sentence.words[span[0] : span[1] + 1])
                constituents.append(Constituent(text, span, vector))
        return constituents

    def surprisal(self, text: str | Sequence[str], *, beam: int = 20) -> list[WordSurprisal]:
        """-log2 p(word | words before it) of each word of a text, trees summed over the beam.

        The first word of a further sentence also pays for the end of the sentence before it.

        Args:
            text: a text, read as the beginning of a document, whose sentences are found by simple
                rules; or sentences, each read as if it stood inside a text, after a space.
        Raises:
            ValueError: no words, or a text longer than the model's context.
        """
        sentences = self.codec.sentences(text) if isinstance(text, str) else self._sentences(text)
        if not sentences:
            raise ValueError("the text is empty")
        [surprisals] = self._surprisals([sentences], beam, None)
        return [word for sentence in surprisals for word in sentence]

    def surprisals(
        self,
        texts: Sequence[Sequence[str]],
        *,
        beam: int = 20,
        on_done: Callable[[int], None] | None = None,
    ) -> list[list[list[WordSurprisal]]]:
        """Words of the sentences of many texts, as [text][sentence][word]; see `surprisal`.

        Args:
            texts: the sentences of each text; a text is read as one context.
        """
        check_texts(texts)
        return self._surprisals([self._sentences(text) for text in texts], beam, on_done)

    def _sentences(self, texts: Sequence[str]) -> list[Sentence]:
        check_texts(texts)
        return [self.codec.sentence(one) for one in texts]

    def _surprisals(
        self,
        texts: Sequence[Sequence[Sentence]],
        beam: int,
        on_done: Callable[[int], None] | None,
    ) -> list[list[list[WordSurprisal]]]:
        for text in texts:
            check_length("text", text, self.model.config.max_context_tokens)
        contexts = [[s.tokens for s in text] for text in texts]
        scores = in_order(score_batches(self.model, contexts, beam=beam), on_done)
        bits = [iter(score.surprisals.tolist()) for score in scores]
        return [[_word_surprisals(s, b) for s in text] for text, b in zip(texts, bits, strict=True)]

    def generate(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 50,
        sampling: Sampling | None = None,
        num_samples: int = 1,
        beam: int = 20,
        sync: bool = True,
        on_text: Callable[[str], None] | None = None,
    ) -> list[GeneratedText]:
        """Continues a prompt; see `gpst.search.generate.generate`.

        Args:
            prompt: may be empty. Its sentences are found by simple rules.
            sampling: None searches for the most probable continuation.
            on_text: hears pieces of the first sample's text as they are drawn.
        """
        sentences = self.codec.sentences(prompt)
        begin = [token for sentence in sentences for token in sentence.tokens]
        heard: list[int] = []
        told = 0

        def hear(sample: int, token: int) -> None:
            nonlocal told
            if sample == 0 and on_text is not None:
                heard.append(token)
                text = self.codec.continuation(begin, heard)
                if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                    on_text(text[told:])
                    told = len(text)

        generations = generate(
            self.model,
            [s.tokens for s in sentences],
            max_new_tokens=max_new_tokens,
            final_tokens=self.final_tokens,
            end_token=self.end_token,
            sampling=sampling,
            num_samples=num_samples,
            beam=beam,
            sync=sync,
            on_token=hear if on_text is not None else None,
        )
        return [self._generated(begin, one) for one in generations]

    def _generated(self, begin: Sequence[int], one: Generation) -> GeneratedText:
        sentences = [
            ParsedSentence([self.codec.piece(token)[0] for token in tokens], tree)
            for tokens, tree in zip(one.sentences, one.trees, strict=True)
        ]
        return GeneratedText(self.codec.continuation(begin, one.tokens), sentences, one.log_p)


def _word_surprisals(sentence: Sentence, bits: Iterator[float]) -> list[WordSurprisal]:
    """The sums over the tokens of each word."""
    sums = [0.0] * len(sentence.words)
    for word in sentence.word_of_token:
        sums[word] += next(bits)
    return [WordSurprisal(w, b) for w, b in zip(sentence.words, sums, strict=True)]

"""Summarization (paper 4.2.1): document, " Summary:", summary as one text; ROUGE on the test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm

from gpst.export.codec import Codec
from pipeline.data.context_table import Split
from pipeline.data.order import mix
from pipeline.distributed.world import World
from pipeline.errors import ConfigError
from pipeline.evaluate.chunks import chunks
from pipeline.evaluate.results import ResultsFolder
from pipeline.finetune.examples import Example
from pipeline.finetune.summarization.config import SummarizationConfig
from pipeline.finetune.summarization.decode import write_summaries
from pipeline.finetune.summarization.read import Pair, SummaryFiles
from pipeline.finetune.summarization.rouge import mean_rouge, rouge
from pipeline.finetune.task import FinetuneTask, gathered, shared
from pipeline.finetune.text import Sentences, TextReader, cut, length
from pipeline.terminal import shows_bars

MARK = " Summary:"
_CHUNK_PAIRS = 512


class SummarizationTask(FinetuneTask):
    """See the module. The mark begins the summary's first sentence, which decoding goes on with."""

    protocol = (
        'document, " Summary:" and summary as one text, all losses of pre-training; on the test '
        "set F of rouge-score's rouge1, rouge2 and rougeL with stemming, for CNN/DailyMail also "
        "rougeLsum (docs/reproduce.md)"
    )
    selects = False

    def __init__(self, config: SummarizationConfig, reader: TextReader, max_context_tokens: int):
        super().__init__(reader, max_context_tokens)
        self.config = config
        self.source = SummaryFiles(config)
        self.name = f"summarization/{config.dataset}"
        self.heading = f"{config.dataset} test"
        self._mark = reader.read([MARK], goes_on=True)[0]
        room = length(self._mark) + 1
        needed = config.document_tokens + config.summary_tokens + room
        if needed > max_context_tokens:
            raise ConfigError(
                f"summarization.document_tokens {config.document_tokens} + summary_tokens "
                f"{config.summary_tokens} + {room} for the mark and the end are more than the "
                f"model takes (max_context_tokens {max_context_tokens}); lower the first"
            )
        self._codec = Codec(reader.tokenizer.json_text)

    def files(self) -> Sequence[Path]:
        return self.source.files()

    def key(self) -> Sequence[Any]:
        config = self.config
        sizes = (config.document_tokens, config.summary_tokens)
        return (config.dataset, config.path, config.subset, *sizes)

    def examples(self) -> dict[Split, Iterable[Example]]:
        return {
            "train": self._examples("train", count=True),
            "validation": self._examples("validation", count=False),
        }

    def _examples(self, split: str, count: bool) -> Iterator[Example]:
        for pairs in chunks(self.source.pairs(split), _CHUNK_PAIRS):
            documents, num_cut = self._documents(pairs)
            summaries = self.reader.read([f"{MARK} {p.summary}" for p in pairs], goes_on=True)
            limit = self.config.summary_tokens + length(self._mark)
            if count:
                self.counters["documents_cut"] += num_cut
                self.counters["summaries_cut"] += sum(length(s) > limit for s in summaries)
            for document, summary in zip(documents, summaries, strict=True):
                yield Example([*document, *cut(summary, limit)])

    def _documents(self, pairs: Sequence[Pair]) -> tuple[list[Sentences], int]:
        """The documents' first tokens, and how many documents are longer."""
        whole = self.reader.read([pair.document for pair in pairs])
        limit = self.config.document_tokens
        return [cut(text, limit) for text in whole], sum(length(text) > limit for text in whole)

    def finish(self, model: nn.Module, world: World, folder: Path) -> dict[str, Any] | None:
        pairs = list(self.source.pairs("test", self.config.max_test))
        mine = list(shared(world, len(pairs)))
        texts = self._summarize(model, [pairs[number] for number in mine], mine, world)
        summaries = gathered(world, dict(zip(mine, texts, strict=True)))
        if not world.is_main:
            return None
        by_sentences = self.config.dataset == "cnn_dailymail"
        scores = rouge(
            [pair.summary for pair in pairs],
            summaries,
            (lambda text: self.reader.split([text])[0]) if by_sentences else None,
        )
        lines = (
            {"index": number, "summary": summary, "reference": pair.summary, **score}
            for number, (pair, summary, score) in enumerate(
                zip(pairs, summaries, scores, strict=True)
            )
        )
        ResultsFolder(folder).write_predictions(lines)
        return {"scores": mean_rouge(scores), "items": len(pairs)}

    def _summarize(
        self, model: nn.Module, pairs: Sequence[Pair], numbers: Sequence[int], world: World
    ) -> list[str]:
        """A summary for each pair's document; similar lengths share a batch."""
        documents, _ = self._documents(pairs)
        order = sorted(range(len(pairs)), key=lambda place: length(documents[place]))
        texts: dict[int, str] = {}
        hidden = not (world.is_main and shows_bars())
        bar = tqdm(total=len(pairs), unit=" documents", disable=hidden)
        for group in chunks(order, self.config.batch_documents):
            prompts = [[*documents[place], *self._mark] for place in group]
            seeds = [mix(0, numbers[place]) >> 1 for place in group]
            written = write_summaries(
                model,
                prompts,
                seeds,
                self.config,
                self._codec.final_tokens(),
                self.reader.end,
            )
            for place, words in zip(group, written, strict=True):
                texts[place] = self._codec.decode(words).strip()
            bar.update(len(group))
        bar.close()
        return [texts[place] for place in range(len(pairs))]

"""GLUE (paper 4.1): texts are classified by the state after CLS; a dev score after each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from data_prep.files import write_atomically
from gpst.model.classifier import Classifier
from gpst.search.batches import batches
from pipeline.data.context_table import Split
from pipeline.distributed.world import World
from pipeline.evaluate.chunks import chunks
from pipeline.evaluate.results import ResultsFolder
from pipeline.finetune.examples import Example
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.glue.metrics import compute_metrics
from pipeline.finetune.glue.read import GlueFiles, Row
from pipeline.finetune.task import FinetuneTask, gathered, shared
from pipeline.finetune.text import Sentences, TextReader, cut_pair, length
from pipeline.monitor.metrics import SCORE
from pipeline.train.trainer import TaskEvaluation

_CHUNK_ROWS = 4096


class GlueTask(FinetuneTask):
    """See the module."""

    protocol = (
        "sentences of the text or the pair, CLS, end; state after CLS -> linear layer; losses of "
        "pre-training + cross entropy; dev scores of the best epoch (docs/reproduce.md)"
    )

    def __init__(self, config: GlueConfig, reader: TextReader, max_context_tokens: int):
        super().__init__(reader, max_context_tokens)
        self.config = config
        self.source = GlueFiles(config)
        self.layout = self.source.layout
        self.name = f"glue/{config.task}"
        self.heading = f"{self.layout.folder} dev"
        self.num_labels = len(self.layout.classes)

    def files(self) -> Sequence[Path]:
        return self.source.files()

    def key(self) -> Sequence[Any]:
        return (self.config.task, self.config.path)

    def examples(self) -> dict[Split, Iterable[Example]]:
        return {"train": self._training()}

    def _training(self) -> Iterator[Example]:
        for rows in chunks(self.source.rows("train"), _CHUNK_ROWS):
            texts, num_cut = self.encode(rows)
            self.counters["cut"] += num_cut
            for row, text in zip(rows, texts, strict=True):
                # The writer adds the end.
                yield Example(text[:-1], row.label)
        self.counters["lines_left_out"] = self.source.left_out

    def encode(self, rows: Sequence[Row]) -> tuple[list[Sentences], int]:
        """The texts as the model reads them: sentences, CLS, end; and how many had to be cut.

        Pairs are cut from the end of the longer text, until both are equally long.
        """
        first = self.reader.read([row.texts[0] for row in rows])
        second: list[Sentences] = [[] for _ in rows]
        if len(self.layout.tsv) == 2:
            second = self.reader.read([row.texts[1] for row in rows], goes_on=True)
        texts, num_cut = [], 0
        for a, b in zip(first, second, strict=True):
            a, b, was_cut = cut_pair(a, b, self.max_context_tokens - 2)
            num_cut += was_cut
            texts.append([*a, *b, [self.reader.cls], [self.reader.end]])
        return texts, num_cut

    def evaluation(self) -> TaskEvaluation:
        def evaluate(model: nn.Module, world: World) -> dict[str, float]:
            scores, _ = self._dev(model, world)
            main = [value for name, value in scores.items() if self._is_main(name)]
            values = {f"eval/{name}": value for name, value in scores.items()}
            return {**values, SCORE: fmean(main)}

        return evaluate

    def _is_main(self, name: str) -> bool:
        """Whether a score is the task's first metric, on any of its dev sets."""
        return name.split("/")[0] == self.layout.metrics[0]

    def _dev(self, model: nn.Module, world: World) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Scores, and a line of predictions.jsonl for each dev item."""
        scores: dict[str, float] = {}
        lines: list[dict[str, Any]] = []
        for split in self.layout.dev:
            rows = list(self.source.rows(split))
            predicted = self._predict(model, rows, world)
            gold = [row.label for row in rows if row.label is not None]
            suffix = split.removeprefix("dev").replace("_", "/")
            values = compute_metrics(self.layout.metrics, gold, predicted)
            scores |= {name + suffix: value for name, value in values.items()}
            lines += [
                {"split": split, "index": i, "texts": row.texts, "label": row.label, "found": label}
                for i, (row, label) in enumerate(zip(rows, predicted, strict=True))
            ]
        return scores, lines

    def _predict(self, model: nn.Module, rows: Sequence[Row], world: World) -> list[int]:
        """The class of every row; the ranks share the work, and all get it."""
        assert isinstance(model, Classifier)
        mine = list(shared(world, len(rows)))
        texts, _ = self.encode([rows[number] for number in mine])
        labels: dict[int, int] = {}
        lengths = [length(text) for text in texts]
        for group in batches(lengths, max_tokens=self.config.batch_tokens, even=False):
            classes = model.predict([texts[place] for place in group]).tolist()
            labels.update((mine[place], k) for place, k in zip(group, classes, strict=True))
        return gathered(world, labels)

    def finish(self, model: nn.Module, world: World, folder: Path) -> dict[str, Any] | None:
        scores, lines = self._dev(model, world)
        submissions = {}
        if self.config.predict_test:
            for split, name in zip(self.layout.test, self.layout.submissions, strict=True):
                rows = list(self.source.rows(split))
                submissions[name] = self._submission(rows, self._predict(model, rows, world))
        if not world.is_main:
            return None
        ResultsFolder(folder).write_predictions(lines)
        for name, text in submissions.items():
            write_atomically(folder / f"{name}.tsv", text.encode())
        files = [f"{name}.tsv" for name in submissions]
        return {"scores": scores, "submission": files, "items": len(lines)}

    def _submission(self, rows: Sequence[Row], predicted: Sequence[int]) -> str:
        """A file for the GLUE server."""
        lines = [
            f"{row.index}\t{self.layout.classes[k]}\n"
            for row, k in zip(rows, predicted, strict=True)
        ]
        return "index\tprediction\n" + "".join(lines)

"""Fine-tuning on the words of a treebank (paper 4.3): F1 on held-out trees after each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from pipeline.data.context_table import Split
from pipeline.distributed.world import World
from pipeline.errors import ConfigError
from pipeline.evaluate.grammar_induction.baselines import baseline_scores
from pipeline.evaluate.grammar_induction.evaluation import prediction_lines
from pipeline.evaluate.grammar_induction.f1 import Span, score_trees
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.evaluate.grammar_induction.parse import Parser, parse, to_pieces
from pipeline.evaluate.results import ResultsFolder
from pipeline.finetune.examples import Example
from pipeline.finetune.grammar_induction.config import GrammarInductionConfig
from pipeline.finetune.task import FinetuneTask, gathered, shared
from pipeline.finetune.text import TextReader
from pipeline.monitor.metrics import SCORE
from pipeline.train.trainer import TaskEvaluation
from pipeline.treebank import GoldTree, tree_files

_NUM_RANDOM = 5


class GrammarInductionTask(FinetuneTask):
    """See the module. Only words are trained on; trees are looked at for F1 alone."""

    name = "grammar_induction"
    heading = "test trees"
    needs_trees = True
    protocol = (
        "fine-tuned on the words of the training trees, best epoch by F1 on the validation trees; "
        "sentence-level unlabelled F1 of Kim et al. 2019 (docs/reproduce.md)"
    )

    def __init__(self, config: GrammarInductionConfig, reader: TextReader, max_context_tokens: int):
        super().__init__(reader, max_context_tokens)
        self.config = config
        self.atoms = config.atoms
        self._encoder = reader.tokenizer.reference()
        for name, path in (("train", config.train), ("valid", config.valid), ("test", config.test)):
            if not Path(path).exists():
                raise ConfigError(f"grammar_induction.{name} {path}: no such file or folder")

    def files(self) -> Sequence[Path]:
        paths = (self.config.train, self.config.valid, self.config.test)
        return [file for path in paths for file in tree_files(Path(path))]

    def key(self) -> Sequence[Any]:
        config = self.config
        cleaning = (config.punctuation, config.lower, config.leading_space, config.max_sentences)
        return (config.train, *cleaning, config.train_with_atoms)

    def examples(self) -> dict[Split, Iterable[Example]]:
        return {"train": self._training()}

    def _training(self) -> Iterator[Example]:
        trees, dropped = self._gold(self.config.train)
        self.counters["no_words"] = dropped
        for number, tree in enumerate(trees, 1):
            place = f"{self.config.train}, tree {number}"
            sentence = to_pieces(tree.words, self._encoder, place, self.config.leading_space)
            inside_word = [sentence.inside_word] if self.config.train_with_atoms else None
            yield Example([sentence.tokens], inside_word=inside_word)

    def _gold(self, path: str) -> tuple[list[GoldTree], int]:
        config = self.config
        return gold_trees(path, config.punctuation, config.lower, config.max_sentences)

    def evaluation(self) -> TaskEvaluation:
        gold, _ = self._gold(self.config.valid)

        def evaluate(model: nn.Module, world: World) -> dict[str, float]:
            f1 = {
                parser: score_trees(gold, self._parse(model, gold, parser, world)).sentence_f1
                for parser in self.config.parsers
            }
            values = {f"eval/F1/{parser}": value for parser, value in f1.items()}
            return {**values, SCORE: f1[self.config.select_by]}

        return evaluate

    def _parse(
        self, model: nn.Module, gold: Sequence[GoldTree], parser: Parser, world: World
    ) -> list[list[Span]]:
        """Spans over words of every sentence; the ranks share the work, and all get it."""
        assert isinstance(model, GPSTModel)  # checked before the run
        mine = list(shared(world, len(gold)))
        sentences = [
            to_pieces(
                gold[number].words,
                self._encoder,
                f"sentence {number + 1}",
                self.config.leading_space,
            )
            for number in mine
        ]
        with evaluating(model):
            trees = parse(
                model,
                sentences,
                parser=parser,
                atoms=self.atoms,
                beam=self.config.beam,
                sync=self.config.sync,
                batch_tokens=self.config.batch_tokens,
            )
            spans = {mine[place]: list(tree.internal_spans) for place, tree in trees}
        return gathered(world, spans)

    def finish(self, model: nn.Module, world: World, folder: Path) -> dict[str, Any] | None:
        gold, _ = self._gold(self.config.test)
        spans = {parser: self._parse(model, gold, parser, world) for parser in self.config.parsers}
        if not world.is_main:
            return None
        scores = {parser: score_trees(gold, trees) for parser, trees in spans.items()}
        baselines, random_f1 = baseline_scores(gold, _NUM_RANDOM)
        ResultsFolder(folder).write_predictions(prediction_lines(gold, spans))
        return {
            "scores": {f"F1/{parser}": score.sentence_f1 for parser, score in scores.items()},
            "details": {parser: asdict(score) for parser, score in scores.items()},
            "baselines": {name: asdict(score) for name, score in baselines.items()},
            "random_f1": random_f1,
            "items": len(gold),
        }

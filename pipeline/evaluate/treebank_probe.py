"""What pre-training measures on a small treebank, and what can be the best metric."""

from __future__ import annotations

from typing import Any

from torch import nn

from gpst.export.codec import Codec
from gpst.model.build import model_class
from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from pipeline.config.run import ResolvedRun
from pipeline.data.source import ContextSource
from pipeline.distributed.world import World
from pipeline.errors import ConfigError
from pipeline.evaluate.grammar_induction.f1 import score_trees
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.evaluate.grammar_induction.parse import parse, to_pieces
from pipeline.evaluate.held_out import metric_names

_BATCH_TOKENS = 2048
_F1, _CORPUS_F1 = "eval/f1", "eval/corpus_f1"


class TreebankProbe:
    """Scores the induced trees against gold trees while a model trains.

    As `launch/evaluate.sh grammar_induction` scores the composition model's trees: without
    punctuation, lower-cased, inside a text.

    Args:
        path: `evaluate.treebank`.
        tokenizer: folder of the dataset's tokenizer.json.

    Raises:
        TreebankError, DataError: the trees cannot be read, or not with this tokenizer.
        ConfigError: the dataset has no tokenizer.
    """

    def __init__(self, path: str, tokenizer: Any) -> None:
        self._gold, _ = gold_trees(path, punctuation=False, lower=True)
        if not (tokenizer / "tokenizer.json").is_file():
            raise ConfigError(
                f"evaluate.treebank: the dataset has no tokenizer ({tokenizer}) to read it with; "
                "leave it out or build the dataset again"
            )
        pieces = Codec.load(tokenizer).tokenizer
        self._sentences = [
            to_pieces(tree.words, pieces, f"evaluate.treebank {path}: sentence {number}", True)
            for number, tree in enumerate(self._gold, 1)
        ]

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """eval/f1, the mean of the sentences', and eval/corpus_f1, in percent; by rank 0."""
        if not world.is_main or not isinstance(model, GPSTModel):
            return {}
        spans: list[list[tuple[int, int]]] = [[] for _ in self._gold]
        with evaluating(model):
            trees = parse(
                model,
                self._sentences,
                parser="inside",
                atoms="constrain_tree",
                beam=1,
                sync=True,
                batch_tokens=_BATCH_TOKENS,
            )
            for number, tree in trees:
                spans[number] = list(tree.internal_spans)
        scores = score_trees(self._gold, spans)
        return {_F1: scores.sentence_f1, _CORPUS_F1: scores.corpus_f1}


def open_treebank_probe(config: ResolvedRun, source: ContextSource) -> TreebankProbe | None:
    """The probe that the configuration asks for, if any; raises what TreebankProbe raises."""
    path = config.evaluate.treebank
    if path is None:
        return None
    return TreebankProbe(path, source.datasets[0].tokenizer_path)


def check_best_metric(config: ResolvedRun) -> None:
    """Refuses a checkpoint.best_metric that pre-training does not measure.

    Raises:
        ConfigError: it names those that are measured.
    """
    best_metric = config.checkpoint.best_metric
    if best_metric is None:
        return
    model = model_class(config.model)
    known = metric_names(model.LOSSES, model.STATISTICS)
    if model is GPSTModel and config.evaluate.treebank:
        known += [_F1, _CORPUS_F1]
    if best_metric not in known:
        raise ConfigError(
            f"checkpoint.best_metric: {best_metric!r} is not measured; known are {', '.join(known)}"
        )

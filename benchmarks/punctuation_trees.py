"""How good are the trees from where punctuation falls, before a model learns them?

    python benchmarks/punctuation_trees.py --data DATASET --trees valid.txt

F1 of the trees of gpst/chart/phrase_edges.py, from counts in the training text of a dataset, for a
treebank's words without punctuation in the dataset's tokens; right-branching trees are beside them.
It is the ceiling of what a model with `structure.chart_order: punctuation` is taught. One JSON line
a file.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict

import numpy as np
import torch
from tokenizers import Tokenizer

from data_prep.format.shard import open_dataset
from gpst.chart.atoms import inside_words_first
from gpst.chart.decode import decode, trees_of
from gpst.chart.layout import build_layout
from gpst.chart.phrase_edges import PhraseEdges
from pipeline.data.punctuation import count_phrase_edges
from pipeline.evaluate.grammar_induction.baselines import right_branching
from pipeline.evaluate.grammar_induction.f1 import Span, score_trees
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.evaluate.grammar_induction.parse import Sentence, to_pieces


def spans(edges: PhraseEdges, sentence: Sentence) -> list[Span]:
    """Of the tree over the words; their pieces are put together before all else."""
    ends = np.array([len(sentence.tokens)])
    scores = edges.boundary_scores(np.array(sentence.tokens, np.int64), ends)
    layout = build_layout(inside_words_first(scores, np.array(sentence.inside_word)), ends, 1)
    tree = trees_of(layout, decode(layout, torch.zeros(len(layout.parent))))[0]
    return list(tree.contract(sentence.word_of).internal_spans)


def measure(
    edges: PhraseEdges, tokenizer: Tokenizer, path: str, most: int | None
) -> dict[str, object]:
    """Scores of a file's trees, or of so many of them, drawn with seed 0."""
    gold, _ = gold_trees(path, False, True)
    if most is not None and most < len(gold):
        gold = random.Random(0).sample(gold, most)
    sentences = [to_pieces(tree.words, tokenizer, path) for tree in gold]
    began = time.process_time()
    trees = [spans(edges, sentence) for sentence in sentences]
    seconds = round(time.process_time() - began, 2)
    right = score_trees(gold, [right_branching(len(tree.words)) for tree in gold])
    scores = {"f1": right.sentence_f1, "corpus_f1": right.corpus_f1}
    return {"trees": path, "seconds": seconds, "right_branching": scores} | asdict(
        score_trees(gold, trees)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, help="dataset whose punctuation is counted")
    parser.add_argument("--trees", required=True, nargs="+", help="files with a tree a line")
    parser.add_argument("--most", type=int, help="only so many trees of a file")
    arguments = parser.parse_args()
    dataset = open_dataset(arguments.data)
    edges = count_phrase_edges([dataset], dataset)
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer_path / "tokenizer.json"))
    for path in arguments.trees:
        print(json.dumps(measure(edges, tokenizer, path, arguments.most)), flush=True)


if __name__ == "__main__":
    main()

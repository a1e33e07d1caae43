"""The shapes that the code writes are checked when the tests run.

tests/conftest.py leaves out the inner loops; here every module is checked once, in a process of
its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from gpst.chart.outside import segment_softmax
from gpst.model.losses import type_loss

ROOT = Path(__file__).parents[2]
CHECK_EVERYTHING = """
from jaxtyping import install_import_hook
chart = [f"gpst.chart.{n}" for n in "atoms decode inside outside packing layout".split()]
inner = [f"gpst.chart.{n}" for n in "pair_pass pair_weights pairs scores".split()]
kernels = [f"gpst.kernels.{n}" for n in "attention packed_linear pair product".split()]
everything = [*chart, *inner, *kernels, "gpst.batch", "gpst.layers", "gpst.model", "gpst.search"]
install_import_hook(everything, "shape_checks.checked")
import torch
from jaxtyping import TypeCheckError
from small_model import make_contexts, make_model
from gpst.batch import ContextBatch
from gpst.kernels import pair
from gpst.model.losses import total_loss
from gpst.search.generate import generate
from gpst.search.parse import search_text
from gpst.search.sample_words import sample_words
from gpst.search.sampling import Sampling
from gpst.search.score import score_text
contexts = make_contexts([[5, 2, 1], [4]])
batch, model = ContextBatch.from_sentences(contexts), make_model()
total_loss(model(batch).losses, batch.counts).backward()
for options in ({}, {"sync": False}):
    search_text(model, contexts, beam=3, **options)
score_text(model, contexts, beam=3, sentence_beam=2)
options = {"max_new_tokens": 3, "beam": 3}
generate(model, [[3, 4]], **options)
generate(model, [[3, 4]], sampling=Sampling(), **options)
sample_words(model, [[[3, 4]]], sampling=Sampling(), **options)
try:
    pair.add_norm(torch.zeros(2, 3), torch.zeros(3, 3))
except TypeCheckError:
    print("checked")
"""


def test_a_wrong_shape_is_an_error():
    four = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(TypeCheckError):
        type_loss(torch.zeros(3, 2), four)
    with pytest.raises(TypeCheckError):
        segment_softmax(torch.zeros(3), four, 1)


def test_all_shapes_are_as_written(clean_environment):
    environment = clean_environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'oracles'}"}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", CHECK_EVERYTHING]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout == "checked\n", ended.stderr

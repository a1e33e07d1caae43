"""The ids are the tokenizer's own, however long the text has no place to cut, on any CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from data_prep.build.encode import Encoder
from data_prep.segment.segmenters import get_segmenter
from data_prep.tokenizer import engines, pieces
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import load_tokenizer

URL = "https://www.example.com/books/download\n"
SHAPES = {
    "no spaces": lambda n: "abcdefghijklmnopqrstuvwxyz0123456789+/"[: n % 30 + 7],
    "lines of one word": lambda n: URL[n % 9 :],
    "only newlines": lambda n: "\n",
    "one character": lambda n: chr(97 + n % 26),
    "long words": lambda n: "unbelievable" * (n % 40 + 1) + " ",
    "combining marks": lambda n: "e\u0301a\u0308\u0323"[: n % 4 + 2],
    "right to left": lambda n: "שלוםعالم"[n % 6 :] + " \n"[n % 2 :],
    "paragraphs": lambda n: ("It was.\n\nSo it \nwas,\n\u3000\nand\u3000\nwas.\u00a0\n" * 3)[
        n % 7 :
    ],
    "no letters": lambda n: "-=_"[: n % 3 + 1] * 7,
    "wide, a line": lambda n: "日本語。" + "\n" * (n % 2),
}


@pytest.fixture(scope="module")
def other_path(tmp_path_factory):
    """A tokenizer that is neither byte-level BPE nor BERT's: words by a prefix, with offsets."""
    folder = tmp_path_factory.mktemp("other")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    letters = ["<unk>", "</s>", *"▁abcdefghijklmnopqrstuvwxyz:/.\n", "ab", "un"]
    tokenizer.model = models.BPE(
        {token: n for n, token in enumerate(letters)}, [("a", "b"), ("u", "n")], unk_token="<unk>"
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def ids_of(encoder, text):
    data = np.frombuffer(text.encode(), np.uint8)
    return encoder.encode(data, np.array([len(data)])).ids


_encoders: dict = {}


def encoder_of(path, engine):
    if (path, engine) not in _encoders:
        loaded = load_tokenizer(path)
        encoder = Encoder(loaded, get_engine(engine, loaded), get_segmenter("fast"), 256)
        _encoders[path, engine] = loaded.reference(), encoder
    return _encoders[path, engine]


@pytest.mark.parametrize(
    ("kind", "engine"),
    [("bpe_path", "gigatoken"), ("bpe_path", "tokenizers"), ("wordpiece_path", "tokie"),
     ("wordpiece_path", "tokenizers"), ("other_path", "tokenizers")],
)  # fmt: skip
@settings(
    deadline=None, max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(list(SHAPES)), st.integers(0, 99), st.integers(30_000, 180_000)),
        min_size=1, max_size=2,
    ),
    between=st.sampled_from(["\n", " ", ". ", "\n\n"]),
)  # fmt: skip
def test_ids_of_long_documents(kind, engine, parts, between, request):
    """As ``tokenizers`` gives them for the whole text."""
    check_shapes(request.getfixturevalue(kind), engine, parts, between)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("bpe_path", "gigatoken"), ("bpe_path", "tokenizers"), ("wordpiece_path", "tokie"),
     ("wordpiece_path", "tokenizers"), ("other_path", "tokenizers")],
)  # fmt: skip
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("size", [70_000, 300_000, 2_000_000])
def test_ids_of_every_shape(kind, engine, shape, size, request):
    check_shapes(request.getfixturevalue(kind), engine, [(shape, 3, size)], "")


def check_shapes(path, engine, parts, between):
    texts = []
    for shape, number, size in parts:
        unit = SHAPES[shape](number)
        texts.append(unit * (size // len(unit.encode())))
    text = between.join(texts)
    reference, encoder = encoder_of(path, engine)
    expected = reference.encode(text, add_special_tokens=False).ids
    np.testing.assert_array_equal(ids_of(encoder, text), expected)
    assert encoder.num_forced == 0


PINNED = """
import os, sys
os.sched_setaffinity(0, {int(cpu) for cpu in sys.argv[1].split(",")})
import hashlib, numpy as np
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import load_tokenizer
text = (b"https://www.example.com/books/download\\n" * 1750 + b"x" * 70_000) * 2
for path in sys.argv[2:]:
    engine = get_engine("auto", load_tokenizer(path))
    ids, _ = engine.encode(np.frombuffer(text, np.uint8), np.array([70_000, len(text)]))
    print(engine.name, len(ids), hashlib.sha256(ids.tobytes()).hexdigest())
"""


def test_ids_do_not_depend_on_the_cpus(bpe_path, wordpiece_path):
    cpus = range(min(os.cpu_count() or 1, 2))  # also those that this process is not pinned to

    def pinned(given):
        paths = map(str, (bpe_path, wordpiece_path))
        command = [sys.executable, "-c", PINNED, ",".join(map(str, given)), *paths]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout

    both = pinned(cpus)
    assert [line.split()[0] for line in both.splitlines()] == ["gigatoken", "tokie"]
    assert pinned(cpus[:1]) == both


@pytest.mark.parametrize(
    ("kind", "engine"), [("bpe_path", "gigatoken"), ("wordpiece_path", "tokie")]
)
def test_the_check_of_an_engine_has_long_pieces(kind, engine, request):
    """One that is wrong from 60 KiB (or its own bound) on would not be chosen."""
    loaded = load_tokenizer(request.getfixturevalue(kind))
    seen = []
    cls = type(get_engine(engine, loaded))
    with pytest.MonkeyPatch.context() as patch:
        encode = cls.encode
        patch.setattr(cls, "encode", lambda self, data, ends: seen.append(
            np.diff(ends, prepend=0).max()) or encode(self, data, ends))  # fmt: skip
        patch.setattr(engines, "_agreed", set())
        get_engine(engine, loaded)
        assert seen
        get_engine(engine, loaded)  # of a tokenizer that was compared before
    assert len(seen) == 1
    assert max(seen) == cls.LONGEST


def test_a_run_beyond_the_bound_is_cut_and_counted(bpe_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1000)
    monkeypatch.setattr(pieces, "LONGEST_WORD", 5000)
    loaded = load_tokenizer(bpe_path)
    encoder = Encoder(loaded, get_engine("tokenizers", loaded), get_segmenter("fast"), 256)
    ids_of(encoder, "日" * 1600)
    assert encoder.num_forced == 0
    ids_of(encoder, "日" * 3600)
    assert encoder.num_forced == 2


SUPERWORDS = [
    lambda values: values.update(
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                       "use_regex": False}),
    lambda values: values["added_tokens"].append(
        {"id": len(values["model"]["vocab"]), "content": "went home", "special": False,
         "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}),
]  # fmt: skip


@pytest.mark.parametrize("change", SUPERWORDS, ids=["pattern", "added token"])
def test_words_of_several_words_are_not_cut(tmp_path, bpe_path, change, monkeypatch):
    values = json.loads((bpe_path / "tokenizer.json").read_text())
    change(values)
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    loaded = load_tokenizer(tmp_path, end_of_document="<|endoftext|>")
    assert loaded.kind == "byte_bpe"
    assert not pieces.cuts_are_safe(loaded)
    assert pieces.cuts_are_safe(load_tokenizer(bpe_path))
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    encoder = Encoder(loaded, get_engine("tokenizers", loaded), get_segmenter("fast"), 256)
    text = "Dr. Smith went home.\nIt was so. " * 40
    np.testing.assert_array_equal(
        ids_of(encoder, text), loaded.reference().encode(text, add_special_tokens=False).ids
    )


PATTERNS = {  # of the families in use: GPT-2, GPT-4 and Llama 3, GPT-4o
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("pattern", list(PATTERNS))
@settings(deadline=None, max_examples=150)
@given(
    text=st.lists(
        st.sampled_from([*"a1.'/é日\u0301\u3000\u00a0 \n", " b", "\n\n", " \n", "\nx", ")/"]),
        min_size=20, max_size=60,
    ).map("".join)
)  # fmt: skip
def test_pieces_end_where_words_begin(pattern, text):
    splitter = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
    data = np.frombuffer(text.encode(), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", 5)
        ends, forced = pieces.cut_into_pieces(data, np.array([len(data)]), True)
    words = [word for word, _ in splitter.pre_tokenize_str(text)]
    assert forced == 0
    starts = [0, *ends[:-1].tolist()]
    parts = [data[a:b].tobytes().decode() for a, b in zip(starts, ends.tolist(), strict=True)]
    assert [word for part in parts for word, _ in splitter.pre_tokenize_str(part)] == words

"""The peers of bench_prep.py: how others turn the same parquet file into tokens.

Each takes (parquet file, tokenizer folder) and returns CPU seconds, without loading its code.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


class AbsentError(Exception):
    """The peer is not installed, or cannot run here; the reason is the message."""


def _need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module.split(".")[0]) is None:
            raise AbsentError(f"{module} is not installed")


def datasets_map_with_punkt(path: Path, tokenizer: Path) -> float:
    """``datasets.map``: punkt sentences, each through ``tokenizers``."""
    _need("datasets", "punkt")
    import datasets
    import punkt

    from data_prep.tokenizer.load import load_tokenizer

    datasets.disable_progress_bars()
    sentences, encoder = punkt.tokenizer_for("english"), load_tokenizer(tokenizer).reference()

    def encode(row: dict) -> dict:
        texts = [s for block in row["text"].split("\n\n") for s in sentences.tokenize(block)]
        ids = [e.ids for e in encoder.encode_batch(texts, add_special_tokens=False)]
        return {"ids": [i for s in ids for i in s], "lengths": [len(s) for s in ids]}

    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.Dataset.from_parquet(str(path), cache_dir=cache)
        start = time.process_time()
        _write_tokens(rows.map(encode, remove_columns=["text"], load_from_cache_file=False), cache)
        return time.process_time() - start


def nanogpt_way(path: Path, tokenizer: Path) -> float:
    """``datasets.map`` with tiktoken, written to one memory map; no sentences."""
    _need("datasets", "tiktoken")
    import datasets

    datasets.disable_progress_bars()
    encoder = _tiktoken(tokenizer)

    def encode(row: dict) -> dict:
        ids = [*encoder.encode_ordinary(row["text"]), encoder.eot_token]
        return {"ids": ids, "len": len(ids)}

    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.Dataset.from_parquet(str(path), cache_dir=cache)
        start = time.process_time()
        _write_tokens(rows.map(encode, remove_columns=["text"], load_from_cache_file=False), cache)
        return time.process_time() - start


def _write_tokens(rows, folder: str) -> None:
    total = sum(len(ids) for ids in rows.with_format("numpy")["ids"])
    out = np.memmap(Path(folder, "tokens.bin"), np.uint16, "w+", shape=(total,))
    at = 0
    for batch in rows.with_format("numpy").iter(1024):
        for ids in batch["ids"]:
            out[at : at + len(ids)] = ids
            at += len(ids)
    out.flush()


def _tiktoken(tokenizer: Path):
    """A tiktoken encoding of a GPT-2 vocabulary."""
    import tiktoken

    from data_prep.build.encode import _byte_characters
    from data_prep.tokenizer.load import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    to_byte = {character: byte for byte, character in _byte_characters().items()}
    vocab = json.loads(loaded.json_text)["model"]["vocab"]
    special = loaded.end_of_document_token
    ranks = {bytes(to_byte[c] for c in t): i for t, i in vocab.items() if t != special}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=ranks,
        special_tokens={special: loaded.end_of_document_id},
    )  # fmt: skip


def datatrove_way(path: Path, tokenizer: Path) -> float:
    """datatrove's ParquetReader and DocumentTokenizer; no sentences."""
    _need("datatrove")
    try:
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.readers import ParquetReader
        from datatrove.pipeline.tokens import DocumentTokenizer
        from loguru import logger
    except ImportError as error:
        raise AbsentError(f"cannot be imported: {error}") from None

    from data_prep.tokenizer.load import load_tokenizer

    logger.remove()
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_tokenizer(tokenizer)
        loaded.save(Path(folder, "tok"))
        steps = [
            ParquetReader(str(path.parent), glob_pattern=path.name),
            DocumentTokenizer(
                f"{folder}/out", tokenizer_name_or_path=f"{folder}/tok/tokenizer.json",
                eos_token=loaded.end_of_document_token, local_working_dir=f"{folder}/work",
                shuffle_documents=False,
            ),
        ]  # fmt: skip
        run = LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=f"{folder}/logs")
        start = time.process_time()
        try:
            run.run()
        except Exception as error:
            raise AbsentError(f"fails here: {' '.join(str(error).split())[:120]}") from None
        return time.process_time() - start


def megatron_way(path: Path, tokenizer: Path) -> float:
    """Megatron-LM's tools/preprocess_data.py with --split-sentences."""
    raise AbsentError("its tools/ are not on PyPI (megatron-core has none), and no copy is here")


PEERS: dict[str, Callable[[Path, Path], float]] = {
    "datasets.map with punkt": datasets_map_with_punkt,
    "nanoGPT's way (no sentences)": nanogpt_way,
    "datatrove (no sentences)": datatrove_way,
    "Megatron-LM preprocess_data": megatron_way,
}

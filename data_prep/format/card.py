"""The data card of a dataset: README.md beside the manifest, for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data_prep.files import write_atomically
from data_prep.format.manifest import SPLITS, Manifest

CARD_NAME = "README.md"


def write_card(directory: Path, manifest: Manifest) -> None:
    """Write the card; it follows from the manifest alone."""
    write_atomically(directory / CARD_NAME, ("\n".join(_lines(manifest)) + "\n").encode())


def _lines(manifest: Manifest) -> Iterator[str]:
    tokenizer, source = manifest.tokenizer, manifest.source
    yield "# Dataset card"
    yield ""
    yield f"Fingerprint `{manifest.fingerprint}`, format version {manifest.format_version}."
    yield "Check it with `python -m data_prep verify .`, look at it with `inspect`."
    yield ""
    yield "| split | documents | sentences | tokens | tokens a sentence | shards |"
    yield "|---|---:|---:|---:|---:|---:|"
    for split in SPLITS:
        sentences, tokens = manifest.num_sentences[split], manifest.num_tokens[split]
        shards = sum(shard.split == split for shard in manifest.shards)
        mean = tokens / sentences if sentences else 0
        yield (
            f"| {split} | {manifest.num_documents[split]:,} | {sentences:,} | {tokens:,}"
            f" | {mean:.1f} | {shards} |"
        )
    yield ""
    yield "## How it was made"
    yield ""
    yield "| what | value |"
    yield "|---|---|"
    yield f"| source | {source.get('name')}: {source.get('summary', '')} |".replace(" | or", " or")
    segmenter = manifest.segmenter
    yield f"| sentences | {segmenter.get('name')}, version {segmenter.get('version', '-')} |"
    if "language" in segmenter:
        yield f"| language of the sentences | {segmenter['language']} |"
    yield f"| tokenizer | {tokenizer.name} ({tokenizer.kind}), {manifest.vocab_size:,} tokens |"
    yield f"| tokenizer.json | sha256 `{tokenizer.sha256}` |"
    yield f"| stored as | {manifest.tokens_dtype} |"
    yield f"| id that starts a sequence | {tokenizer.bos_id} |"
    yield f"| id that ends a document | {tokenizer.end_of_document_id} |"
    for name, value in sorted(manifest.arguments.items()):
        if name not in ("tokenizer", "source", "segmenter", "segmenter_version", "language"):
            yield f"| {name.replace('_', '-')} | {value} |"
    yield ""
    yield "A document ends with a sentence of one token, that id."
    if "validation_fraction" in manifest.arguments:
        yield "Held-out documents are chosen by the hash of their text, with one fraction"
        yield "throughout, so copies of a text are on one side."
    else:
        yield "How held-out documents were chosen is not known: a text may be on both sides."
    yield ""
    yield "## Counters"
    yield ""
    yield "Records that were left out are in `quarantine.jsonl` with file, offset and reason,"
    yield "files that were not UTF-8 in `decoded.jsonl` with their encoding."
    yield ""
    yield "| reason | count |"
    yield "|---|---:|"
    for name, count in manifest.counters.items():
        yield f"| {name} | {count:,} |"

"""Load a tokenizer from any of the usual formats into one form: the text of a tokenizer.json.

Accepted: a folder or file of ``tokenizer.json``; BERT's ``vocab.txt``; GPT-2's ``vocab.json`` with
``merges.txt`` beside it. What is loaded is checked against the files: some loaders silently give an
almost empty vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from data_prep.errors import TokenizerError
from data_prep.files import write_atomically

BYTE_BPE, WORDPIECE, OTHER = "byte_bpe", "wordpiece", "other"
END_OF_TEXT = "<|endoftext|>"
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# tried in this order when the configuration names no token
_BOS = ("[CLS]", "<|begin_of_text|>", "<|startoftext|>", "<bos>", "<s>", END_OF_TEXT, "</s>")
_END = ("[SEP]", "<|end_of_text|>", END_OF_TEXT, "<eos>", "</s>", "<|im_end|>")


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer, checked. ``json_text`` is its whole definition, as in tokenizer.json.

    vocab_size: the largest id + 1. bos_id, end_of_document_id: ids of ``bos_token`` and
    ``end_of_document_token``, which text is never encoded as.
    """

    name: str
    kind: str
    json_text: str
    vocab_size: int
    bos_token: str
    end_of_document_token: str
    bos_id: int
    end_of_document_id: int
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The hash of tokenizer.json as it is stored in a dataset."""
        return hashlib.sha256(self.json_text.encode()).hexdigest()

    def reference(self) -> Tokenizer:
        """The tokenizer as an object of the library ``tokenizers``, special tokens off."""
        tokenizer = Tokenizer.from_str(self.json_text)
        tokenizer.encode_special_tokens = True  # a literal "<|endoftext|>" in text is plain text
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and a tokenizer_config.json that transformers can load."""
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / "tokenizer.json", self.json_text.encode())
        config = json.dumps(self.config, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        write_atomically(directory / "tokenizer_config.json", config.encode())


def load_tokenizer(path: str | Path, *, end_of_document: str | None = None) -> LoadedTokenizer:
    """Load and check a tokenizer; ``end_of_document`` names the token that ends a document.

    Raises TokenizerError: nothing there, a broken file, a vocabulary that does not load whole, no
    token that could end a document.
    """
    path = Path(path)
    tokenizer, name, config = _read(path)
    text = tokenizer.to_str()
    parsed = json.loads(text)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        raise TokenizerError(f"tokenizer {path} has an empty vocabulary; train or copy it again")
    bos = _special(tokenizer, path, "bos_token", config.get("bos_token"), _BOS)
    end = _special(
        tokenizer,
        path,
        "end-of-document token",
        end_of_document or config.get("eos_token") or config.get("sep_token"),
        _END,
    )
    kind = _kind(parsed)
    return LoadedTokenizer(
        name=name,
        kind=kind,
        json_text=text,
        vocab_size=max(ids.values()) + 1,
        bos_token=bos,
        end_of_document_token=end,
        bos_id=ids[bos],
        end_of_document_id=ids[end],
        config=_config(config, kind, bos, end),
    )


def _read(path: Path) -> tuple[Tokenizer, str, dict[str, Any]]:
    """(tokenizer, its name, its tokenizer_config.json or {})."""
    folder = path if path.is_dir() else path.parent
    candidates = ["tokenizer.json", "vocab.txt", "vocab.json"] if path.is_dir() else [path.name]
    for file_name in candidates:
        file = folder / file_name
        if not file.is_file():
            continue
        config = _read_config(folder / "tokenizer_config.json")
        name = folder.resolve().name if path.is_dir() else path.name
        if file_name == "vocab.txt" or file.suffix == ".txt":
            return _bert(file), name, config
        if file_name == "vocab.json":
            return _gpt2(file, folder / "merges.txt"), name, config
        return _tokenizer_json(file), name, config
    if not path.exists():
        raise TokenizerError(
            f"tokenizer {path} does not exist; train one: python -m data_prep tokenizer"
        )
    raise TokenizerError(
        f"tokenizer {path}: no tokenizer.json, vocab.txt, or vocab.json with merges.txt in it"
    )


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    values = _parse(path)
    if not isinstance(values, dict):
        raise TokenizerError(f"{path} is not a JSON object; remove it or copy it again")
    # a token may be stored as {"content": "<s>", ...}
    return {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in values.items()
    }


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except PermissionError:
        raise TokenizerError(f"{path} cannot be read: no permission; chmod it") from None
    except (ValueError, OSError) as error:
        raise TokenizerError(f"{path} is not JSON ({error}); copy it again") from None


def _tokenizer_json(path: Path) -> Tokenizer:
    parsed = _parse(path)
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{path} is not a tokenizer.json ({error})") from None
    listed = parsed["model"].get("vocab", ())
    loaded = tokenizer.get_vocab_size(with_added_tokens=False)
    if loaded < len(listed):
        raise TokenizerError(f"{path} lists {len(listed)} tokens, but only {loaded} were loaded")
    return tokenizer


def _lines(path: Path) -> list[str]:
    """Lines split at LF only: vocabularies hold tokens such as U+2028 that splitlines breaks."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read as UTF-8 text ({error})") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def _bert(path: Path) -> Tokenizer:
    lines = _lines(path)
    vocab = {token: number for number, token in enumerate(lines)}
    missing = [token for token in BERT_SPECIALS if token not in vocab]
    if missing or len(vocab) != len(lines):
        what = f"lacks {', '.join(missing)}" if missing else "lists a token twice"
        raise TokenizerError(f"{path} {what}: not a BERT vocabulary")
    lowercase = not any("A" <= token[:1] <= "Z" for token in lines)
    tokenizer = wordpiece_tokenizer(vocab, lowercase)
    _check_whole(path, tokenizer, len(lines))
    return tokenizer


def wordpiece_tokenizer(vocab: dict[str, int] | None, lowercase: bool) -> Tokenizer:
    """A BERT tokenizer over a vocabulary (None: empty, to be trained)."""
    model = models.WordPiece(vocab or {}, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    if vocab:
        tokenizer.add_special_tokens([_added(token) for token in BERT_SPECIALS])
    return tokenizer


def _added(token: str) -> AddedToken:
    return AddedToken(token, special=True, normalized=False)


def _gpt2(vocab_path: Path, merges_path: Path) -> Tokenizer:
    vocab = _parse(vocab_path)
    if not isinstance(vocab, dict) or not vocab:
        raise TokenizerError(f"{vocab_path} is not a mapping of tokens to ids")
    if not merges_path.is_file():
        raise TokenizerError(f"{merges_path} is missing beside {vocab_path.name}")
    lines = _lines(merges_path)
    if lines and lines[0].startswith("#version"):
        lines = lines[1:]
    merges = [tuple(line.split(" ")) for line in lines if line]
    for number, merge in enumerate(merges):
        if len(merge) != 2 or any(part not in vocab for part in (*merge, "".join(merge))):
            raise TokenizerError(
                f"{merges_path}: merge {number + 1} {' '.join(merge)!r} does not fit {vocab_path}"
            )
    tokenizer = byte_bpe_tokenizer(vocab, [(left, right) for left, right in merges])
    if END_OF_TEXT in vocab:
        tokenizer.add_special_tokens([_added(END_OF_TEXT)])
    _check_whole(vocab_path, tokenizer, len(vocab))
    return tokenizer


def byte_bpe_tokenizer(
    vocab: dict[str, int] | None = None, merges: list[tuple[str, str]] | None = None
) -> Tokenizer:
    """A GPT-2 tokenizer over a vocabulary and merges (None: empty, to be trained)."""
    model = models.BPE(vocab, merges) if vocab and merges is not None else models.BPE()
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _check_whole(path: Path, tokenizer: Tokenizer, expected: int) -> None:
    loaded = tokenizer.get_vocab_size(with_added_tokens=True)
    if loaded != expected:
        raise TokenizerError(f"{path} lists {expected} tokens, but {loaded} were loaded")


def _special(
    tokenizer: Tokenizer, path: Path, what: str, named: str | None, candidates: tuple[str, ...]
) -> str:
    if named is not None:
        if tokenizer.token_to_id(named) is None:
            raise TokenizerError(f"tokenizer {path}: {what} {named!r} is not in its vocabulary")
        return named
    for token in candidates:
        if tokenizer.token_to_id(token) is not None:
            return token
    raise TokenizerError(
        f"tokenizer {path} has no {what} that is known; name one: --end-of-document TOKEN"
    )


def _kind(parsed: dict[str, Any]) -> str:
    """byte_bpe: tokens are byte strings that give the text back; wordpiece: BERT's; other."""
    flags = ("single_word", "lstrip", "rstrip")
    if any(not t["special"] and any(t[flag] for flag in flags) for t in parsed["added_tokens"]):
        return OTHER  # found by rules that faster engines do not have
    model, before = parsed["model"], parsed["pre_tokenizer"] or {}
    steps = before.get("pretokenizers", [before])
    kinds = [step.get("type") for step in steps]
    if model["type"] == "BPE" and parsed["normalizer"] is None and "ByteLevel" in kinds:
        plain = not model.get("continuing_subword_prefix") and not model.get("end_of_word_suffix")
        prefixed = any(step.get("add_prefix_space") for step in steps)
        complete = all(c in model["vocab"] for c in pre_tokenizers.ByteLevel.alphabet())
        if plain and complete and not prefixed and not model.get("dropout"):
            return BYTE_BPE
    normalizer = (parsed["normalizer"] or {}).get("type", "BertNormalizer")
    if model["type"] == "WordPiece" and kinds == ["BertPreTokenizer"]:
        return WORDPIECE if normalizer == "BertNormalizer" else OTHER
    return OTHER


def _config(original: dict[str, Any], kind: str, bos: str, end: str) -> dict[str, Any]:
    """A tokenizer_config.json for transformers' PreTrainedTokenizerFast."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
    }
    if kind == WORDPIECE:
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        config.update(zip(names, BERT_SPECIALS, strict=True))
    for name in ("pad_token", "unk_token", "model_max_length"):
        if original.get(name) is not None:
            config[name] = original[name]
    return config

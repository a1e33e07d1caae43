"""What is no text is left out by name; text comes out, whatever its encoding."""

from __future__ import annotations

import bz2
import encodings
import gzip
import io
import json
import pkgutil
import random
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded import document_texts
from tars import tar_of

from data_prep.build.build import build
from data_prep.build.job import BuildArguments
from data_prep.sources import ranges, text
from data_prep.sources.options import SourceOptions
from data_prep.sources.registry import get_source
from data_prep.text.batch import RawBatch, Recorder
from data_prep.text.decode import clean_documents
from data_prep.text.encodings import AUTO, SAMPLE_BYTES, decoded, detect_encoding, known_encoding

TEXTS = {
    "ru": "Это обычный русский текст о погоде. Завтра будет дождь, и мы останемся дома.\n",
    "fr": "Voilà un café très agréable où l'été dure longtemps, même à Noël.\n",
    "pl": "Zażółć gęślą jaźń, powiedział król, źle się dzieje w państwie.\n",
    "hu": "Az őszi erdőben csöndes eső hullott, és a fűben gyűszűnyi gombák nőttek.\n",
    "cs": "Příliš žluťoučký kůň běžel přes dvůr, děti se smály a šly domů.\n",
    "sl": "Včeraj je deževalo, zato smo ostali doma; jutri pa gremo peš čez žitna polja k morju.\n",
    "hr": "Djevojčica je šetala uz more, a ćuk je šutio na grani čempresa.\n",
    "tr": "Bugün hava çok güzel; çocuklar bahçede oynuyor, yaşlı bir adam ışığa bakıyor.\n",
    "lv": "Šodien ārā līst, tāpēc bērni sēž mājās, lasa grāmatas un gaida ziemu.\n",
    "lt": "Šiandien lyja, todėl vaikai sėdi namuose, skaito knygą ir žiūri į žalią mišką.\n",
    "et": "Öösel sõitis õpetaja üle järve, et näha pühapäeval žürii tööd ja tšello mängu.\n",
    "da": "På søndag går børnene over åen og køber æbler hos den gamle mand på gården.\n",
    "sv": "På söndag går barnen över ån och köper äpplen av den gamla mannen på gården.\n",
    "de": "Die Bäume blühen früh, und die Mädchen hören über den Straßen schöne Glocken läuten.\n",
    "es": "Mañana el niño irá con su mamá al jardín; después comerán piñas y beberán café.\n",
    "pt": "Amanhã as crianças não irão à praia; depois do almoço, a avó fará pão de maçã.\n",
    "it": "Perché la città è così bella? Più tardi andrò giù al caffè con papà.\n",
    "en": "He said, \u201cDon\u2019t go to the caf\u00e9 \u2013 it isn\u2019t open\u2026\u201d\n",
    "fi": "Äiti meni pöydän ääreen, ja lapset söivät jäätelöä yöllä.\n",
    "nl": "De ideeën van één café in België, zei ze, zijn geen kopieën van elders.\n",
    "uk": "Учора йшов дощ, тому ми залишилися вдома; їжак спав під ґанком і чекав.\n",
    "bg": "Вчера валя дъжд, затова останахме вкъщи; утре ще отидем на пазара с тях.\n",
    "he2": "בית־הספר נמצא ליד הים, והילדים הולכים אליו כל יום ביחד עם המורה.\n",
    "el": "Η γρήγορη καφέ αλεπού πηδάει πάνω από το σκύλο. Καλημέρα σας.\n",
    "he": "שלום לכולם, זהו טקסט פשוט בעברית על מזג האוויר.\n",
    "ja": "これは日本語の文章です。天気がとても良いので、散歩に行きましょう。\n",
    "zh": "这是一个关于天气的简单中文文本。明天会下雨。\n",
    "ko": "이것은 날씨에 관한 간단한 한국어 텍스트입니다. 내일은 비가 올 것입니다.\n",
    "th": "นี่คือข้อความภาษาไทยง่ายๆ เกี่ยวกับสภาพอากาศ\n",
}
OLD = [("ru", "cp1251"), ("ru", "koi8-r"), ("ru", "cp866"), ("ru", "iso8859-5"), ("fr", "latin-1"),
       ("fr", "mac-roman"), ("pl", "cp1250"), ("el", "cp1253"), ("he", "cp1255"),
       ("ja", "shift-jis"), ("ja", "euc-jp"), ("ja", "iso2022-jp"), ("zh", "gb2312"),
       ("zh", "gb18030"), ("hu", "cp1250"), ("hu", "iso8859-2"), ("cs", "cp1250"),
       ("cs", "iso8859-2"), ("sl", "cp1250"), ("hr", "cp1250"), ("tr", "cp1254"), ("lv", "cp1257"),
       ("lt", "cp1257"), ("et", "cp1257"), ("et", "iso8859-15"),
       ("da", "cp1252"), ("sv", "latin-1"), ("de", "cp1252"), ("es", "cp1252"),
       ("pt", "latin-1"), ("it", "cp1252"), ("en", "cp1252"), ("es", "cp850"),
       ("ko", "euc-kr"), ("th", "tis-620"), ("fi", "cp1252"), ("fi", "cp850"), ("nl", "latin-1"),
       ("nl", "cp850"), ("uk", "koi8-u"), ("uk", "cp1251"), ("bg", "cp1251"), ("he2", "cp1255"),
       ("de", "mac-roman"), ("it", "cp850"), ("hu", "cp852"), ("cs", "cp852")]  # fmt: skip
WIDE = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig"]


@pytest.mark.parametrize(("language", "encoding"), OLD)
def test_old_encodings_are_recognised(language, encoding):
    for times in (2, 30):
        data = (TEXTS[language] * times).encode(encoding)
        found = detect_encoding(data)
        assert decoded(data, found.encoding).decode() == TEXTS[language] * times, found


@pytest.mark.parametrize("text", ["add ½ cup of milk", "10 °C", "a café", "“Go”, he said – twice."])
def test_a_sign_or_two_in_english_are_those_of_windows(text):
    found = detect_encoding((text + "\n").encode("cp1252"))
    assert decoded(text.encode("cp1252"), found.encoding).decode() == text


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("language", ["fr", "ru", "ja", "zh"])
def test_wide_encodings_with_and_without_a_mark(language, encoding):
    data = TEXTS[language].encode(encoding)
    found = detect_encoding(data)
    assert decoded(data, found.encoding).decode().lstrip("\ufeff") == TEXTS[language], found


def test_what_does_not_fit_is_marked():
    """Each place once, by a byte that is no UTF-8; the rest stays."""
    assert decoded(b"a\x81b", "cp1252") == b"a\xffb"
    assert decoded("ab".encode("utf-16-le") + b"\x00\xdcc\x00d", "utf-16-le") == b"ab\xffc\xff"
    assert known_encoding("UTF-8-sig") == "utf-8"
    assert known_encoding("rot13") is None
    assert decoded(b"a+2AA-b", "utf-7") == b"a\xffb"  # half of a pair


def test_every_encoding_that_is_taken_decodes_whatever_the_bytes_are():
    names = {module.name for module in pkgutil.iter_modules(encodings.__path__)}
    known = {known_encoding(name) for name in names} - {None}
    assert len(known) > 80
    for encoding in known - {"utf-16", "utf-32"}:  # of which the mark tells the order of bytes
        for data in (bytes(range(256)), rb"\ud800 \N{x} xn--a +2AA-", b""):
            decoded(data, encoding).replace(b"\xff", b"").decode("utf-8")


def no_text(folder):
    """Files that are named as text and are none."""
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["One."] * 50}), table)
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.txt", "Some text. " * 50)
    noise = random.Random(0)
    contents = {
        "a.jpg": b"\xff\xd8\xff\xe0\0\x10JFIF" + noise.randbytes(500),
        "b.pdf": b"%PDF-1.4\nplain to its end\n",
        "c.zip": zipped.getvalue(),
        "d.tar.gz": gzip.compress(tar_of([("x.txt", b"Some text. " * 50)])),
        "e.parquet": table.getvalue(),
        "f": noise.randbytes(300),
        "g": noise.randbytes(100_000),
        "h": b"\0" * 3000,
        "i.gz": gzip.compress(noise.randbytes(5000)),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return sorted(contents)


@pytest.mark.parametrize("split", [False, True])
def test_files_that_are_no_text_are_named_and_not_built(tmp_path, bpe_path, split):
    folder = tmp_path / "in"
    folder.mkdir()
    names = no_text(folder)
    (folder / "y.bz2").write_bytes(bz2.compress(b"Packed text."))
    (folder / "z.txt").write_text("Plain text with a \x07 in it.")
    arguments = BuildArguments(
        "text", SourceOptions(split_blank_lines=split), validation_fraction=0.0
    )
    dataset = build([f"{folder}/*"], bpe_path, tmp_path / "out", arguments)
    found = ["".join(document) for document in document_texts(dataset)]
    assert found == ["Packed text.", "Plain text with a  in it."]
    lines = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert {e["reason"] for e in entries} == {"binary_file"}
    assert sorted(e["file"] for e in entries) == [f"{folder}/{name}" for name in names]


@pytest.mark.parametrize("name", ["jsonl", "text", "treebank", "wikitext"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "cp1251"])
@pytest.mark.parametrize("size", ["whole", "ranges"])
def test_every_source_decodes(name, encoding, size, tmp_path, read, monkeypatch):
    """The same documents as from UTF-8, whatever the size and the way in; counted once a file."""
    if size == "ranges":
        monkeypatch.setattr(ranges, "RANGE_BYTES", 100)
        monkeypatch.setattr(text, "SMALL_FILE", 10)
    line = {"jsonl": json.dumps({"text": TEXTS["ru"]}, ensure_ascii=False) + "\n",
            "treebank": "(S (A Это) (B обычный) (C русский) (D текст) (E погоде) (F дождь)"
            " (G останемся))\n"}  # fmt: skip
    content = line.get(name, TEXTS["ru"] + "\n") * 9
    suffix = get_source(name).suffixes[0]
    for split in (False, True):
        documents = []
        for target in ("utf-8", encoding):
            (tmp_path / f"x{suffix}").write_bytes(content.encode(target))
            found, recorder = read(name, [tmp_path], split_blank_lines=split)
            documents.append([d.lstrip("\ufeff") for d in found])
        assert documents[0] == documents[1]
        assert recorder.counters == {f"files_decoded/{encoding}": 1}
        path = str(tmp_path / f"x{suffix}")
        assert recorder.decoded == [{"file": path, "offset": 0, "encoding": encoding}]
        declared, recorder = read(name, [tmp_path], split_blank_lines=split, encoding=encoding)
        assert [d.lstrip("\ufeff") for d in declared] == documents[0]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("num_old", [1, 20, 60])
def test_a_file_of_two_encodings_is_read_as_what_most_lines_are(num_old, end):
    """Its other lines are left out by name, since their bytes do not fit."""
    new = f"It\u2019s \u201cnew\u201d.{end}".encode() * 30
    old = (TEXTS["ru"][:20] + end).encode("cp1251")
    for sample in (new + old * num_old, old * num_old + new):
        for declared in ("auto", "cp1251"):
            assert (detect_encoding(sample, declared).encoding == "utf-8") == (num_old < 30)


def test_documents_that_are_mostly_damaged_are_left_out_by_name(tmp_path, bpe_path):
    good, bad = "Good text. " * 30, "Mostly \x81\x8d\x8f"
    lines = [json.dumps({"text": t}, ensure_ascii=False).encode("latin-1")
             for t in (good + "\xff", bad * 20, good)]  # fmt: skip
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    arguments = BuildArguments("jsonl", SourceOptions(encoding="utf-8"), validation_fraction=0.0)
    dataset = build([str(tmp_path / "x.jsonl")], bpe_path, tmp_path / "out", arguments)
    assert dataset.manifest.counters["documents"] == 2
    assert dataset.manifest.counters["bad_utf8_replaced"] == 1
    entry = json.loads((tmp_path / "out" / "quarantine.jsonl").read_text())
    assert (entry["reason"], entry["offset"]) == ("bad_utf8", len(lines[0]) + 1)
    assert entry["detail"] == "60 places that do not fit; or name another --encoding"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "cp1252"])
def test_a_declared_encoding_is_that_of_files_that_do_not_show_theirs(tmp_path, bpe_path, encoding):
    text = "Déjà vu. C’est la vie.\n" * 20
    forms = ("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-be")
    kept = {f"{name}.txt": text.encode(name) for name in forms}
    declared = "Été" if encoding == "cp1252" else "é"  # too short to show what it is
    kept["declared.txt"] = declared.encode("cp1252" if encoding == "cp1252" else encoding + "-le")
    (tmp_path / "in").mkdir()
    for name, data in kept.items():
        (tmp_path / "in" / name).write_bytes(data)
    arguments = BuildArguments("text", SourceOptions(encoding=encoding), validation_fraction=0.0)
    dataset = build([str(tmp_path / "in")], bpe_path, tmp_path / "out", arguments)
    found = ["".join("".join(document).split()) for document in document_texts(dataset)]
    assert sorted(found) == sorted([declared, *["".join(text.split())] * len(forms)])


@pytest.mark.parametrize("split", [True, False])
def test_the_encoding_of_a_long_file_is_looked_for_where_its_ascii_ends(tmp_path, bpe_path, split):
    line = "Grüße aus Köln, sagte die Frau.\n".encode("latin-1")
    raw = b"All of this is ASCII.\n" * 60000 + 50 * line
    assert len(raw) > SAMPLE_BYTES
    (tmp_path / "x.txt").write_bytes(raw)
    options = SourceOptions(split_blank_lines=split)
    arguments = BuildArguments("text", options, validation_fraction=0.0)
    dataset = build([str(tmp_path / "x.txt")], bpe_path, tmp_path / "out", arguments)
    assert "bad_utf8_replaced" not in dataset.manifest.counters
    found = "".join(sentence for document in document_texts(dataset) for sentence in document)
    assert found.count("Grüße aus Köln") == 50
    batch = RawBatch.join([raw], "x.txt", [0], ["x.txt"], whole_files=True)
    _, clean = clean_documents(batch, AUTO, Recorder())
    assert clean.data.tobytes().decode().count("Grüße aus Köln") == 50


@pytest.mark.parametrize("head", ["GIF89a is a format.", "PAR1 is a word"])
def test_a_text_may_begin_like_a_picture(head):
    assert detect_encoding(head.encode() * 9).encoding == "utf-8"
    assert detect_encoding(head.encode() + b"\0\1\0").reason == "binary_file"

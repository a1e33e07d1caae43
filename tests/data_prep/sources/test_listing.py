"""The files of an input: each once, in the order of their paths, whatever their number."""

from __future__ import annotations

import gzip
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.errors import UsageError
from data_prep.sources.base import InputFile, read_parts
from data_prep.sources.listing import FileList
from data_prep.sources.options import SourceOptions
from data_prep.sources.registry import find_files, get_source
from data_prep.text.batch import Recorder

NAMES = st.text("ab-./ é", min_size=1, max_size=6).map(lambda name: name.strip("/."))
NAMES = NAMES.filter(lambda name: "/." not in name)  # hidden


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.lists(NAMES.filter(bool), min_size=1, max_size=12))
def test_files_are_sorted_by_path(tmp_path_factory, names):
    """As a sort of all paths has them, given once or several times over."""
    root = tmp_path_factory.mktemp("tree")
    for name in names:
        path = root / f"{name}.txt"
        if not any(p.is_file() for p in (path, *path.parents)) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        (root / "other.bin").write_text("x")
    walked = [os.path.join(f, n) for f, _, found in os.walk(root) for n in found]
    expected = sorted(path for path in walked if path.endswith(".txt"))
    assert [file.path for file in find_files([str(root)], (".txt",))] == expected
    several = [expected[-1], str(root), f"{root}/*", f"{root}/../{root.name}", expected[0]]
    found = find_files(several, (".txt",))
    real = [os.path.realpath(f.path) for f in found if f.path.endswith(".txt")]
    assert sorted(real) == sorted(map(os.path.realpath, expected))


@pytest.mark.parametrize("count", [0, 99, 100, 1200, 1234])
def test_a_long_list_is_kept_small(monkeypatch, count):
    monkeypatch.setattr("data_prep.sources.listing.PACK", 100)
    files = [InputFile(f"/corpus/urlsf_subset{n % 7}/{n:07d}.txt", n) for n in range(count)]
    listed = FileList(iter(files))
    assert list(listed) == list(listed) == files
    assert (len(listed), listed.num_bytes) == (count, sum(range(count)))
    assert all(file in listed for file in files[:5])
    assert InputFile("/corpus/none", 5) not in listed
    assert sum(map(len, listed._packed)) <= 40 * len(files)


@pytest.mark.parametrize("source", ["text", "openwebtext"])
def test_small_files_are_read_together(tmp_path, source):
    """In their order, beside large, compressed and empty ones, and one that has grown since."""
    texts = [f"Text {n}." * (n + 1) for n in range(40)]
    texts[20] *= 2000
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02d}.txt").write_text(text)
    (tmp_path / "05.txt").write_bytes(gzip.compress(texts[5].encode()))
    (tmp_path / "07.txt").write_bytes(b"")
    options, recorder = SourceOptions(), Recorder()
    parts = list(get_source(source).parts(find_files([str(tmp_path)], (".txt",)), options))
    (tmp_path / "30.txt").write_text(texts[30] + " More.")
    texts[30] += " More."
    batches = list(read_parts(get_source(source), parts, options, recorder))
    found = [
        (*batch.where(number), batch.data[start:end].tobytes().decode())
        for batch in batches
        for number, (start, end) in enumerate(zip(batch.starts, batch.ends, strict=True))
    ]
    expected = [(str(tmp_path / f"{n:02d}.txt"), 0, text) for n, text in enumerate(texts)]
    assert found == expected[:7] + expected[8:]
    assert [len(batch.starts) for batch in batches] == [5, 1, 1, 12, 1, 9, 1, 9]
    assert recorder.counters == {"dropped/empty_file": 1}


def paths(*inputs, suffixes=(".txt",)):
    return [file.path for file in find_files([str(path) for path in inputs], suffixes)]


def test_links_to_folders_are_followed_once(tmp_path):
    """A circle ends; what a link finds in the input a second time is not taken twice."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "a", outside / "deep", root / ".cache" / "data"):
        folder.mkdir(parents=True)
        (folder / "x.txt").write_text("x")
    (root / "a" / "loop").symlink_to(root)
    (root / "a" / "up").symlink_to(tmp_path)
    (root / "b.txt").symlink_to(root / "a" / "x.txt")
    (root / "c").symlink_to(root / "a")
    (root / "d").symlink_to(outside)
    (root / "e").symlink_to(outside)
    (root / "f").symlink_to(root / ".cache" / "data")
    (outside / "deep" / "back").symlink_to(outside)
    found = paths(root)
    assert found == sorted(found)
    real = sorted(os.path.realpath(path) for path in found)
    folders = (root / ".cache" / "data", root / "a", outside / "deep")
    assert sorted(map(str, real)) == sorted(str(folder / "x.txt") for folder in folders)
    assert str(root / "b.txt") not in found  # a file that is there already


def test_what_a_folder_holds_beside_the_input_is_told(tmp_path, corpus, bpe_path, run):
    """Suffixes fit in capitals; other files and hidden ones are counted, with an example."""
    for name in ("A.TXT", "b.bz2", "c", ".d.txt", ".git/e.txt", ".ipynb_checkpoints/f.txt"):
        (corpus / name).parent.mkdir(exist_ok=True)
        (corpus / name).write_text("One more document.")
    found = paths(corpus)
    assert len(found) == 13
    assert str(corpus / "A.TXT") in found
    expected = (
        f"left out of the input: 2 with another suffix (first {corpus}/b.bz2),"
        f" 3 hidden (first {corpus}/.d.txt)\n"
    )
    common = (
        "build", "--source", "text", "--input", corpus, "--tokenizer", bpe_path,
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert run(*common, "--dry-run")[1].endswith(expected)
    code, _, error = run(*common)
    assert code == 0
    assert f"warning: {expected}" in error
    assert paths(corpus / ".git") == [str(corpus / ".git" / "e.txt")]  # asked for by name


def test_archives_with_suffixes_in_capitals(tmp_path, read):
    (tmp_path / "X.TXT").write_text("One.")
    assert read("openwebtext", [tmp_path])[0] == ["One."]


@pytest.mark.parametrize("given", ["folder", "pattern", "link"])
def test_an_output_inside_the_input_is_no_input(tmp_path, given, bpe_path, run):
    """An unfinished build goes on, and a finished one is found again."""
    folder, linked = tmp_path / "in", tmp_path / "linked"
    folder.mkdir()
    linked.symlink_to(folder)
    (folder / "x.jsonl").write_text('{"text": "One. Two."}\n')
    (folder / "outer").mkdir()
    (folder / "outer" / "y.jsonl").write_text('{"text": "Three."}\n')
    inputs = {"folder": folder, "pattern": f"{folder}/**", "link": linked}
    command = (
        "build", "--source", "jsonl", "--input", inputs[given], "--tokenizer", bpe_path,
        "--output", folder / "out", "--validation-fraction", "0",
    )  # fmt: skip
    code, first, error = run(*command)
    assert code == 0, error
    assert (folder / "out" / "manifest.json").exists()
    code, again, error = run(*command)
    assert (code, again) == (0, first), error


def test_a_folder_that_cannot_be_read(corpus, build_closed):
    """It is not passed over in silence."""
    (corpus / "closed").mkdir(0)
    code, _, said = build_closed()
    (corpus / "closed").chmod(0o700)
    assert said == f"error: input {corpus}/closed cannot be read: Permission denied\n"
    assert code == 2
    with pytest.raises(UsageError, match="holds no file that ends in"):
        find_files([str(corpus / "closed")], (".txt",))


def test_the_other_commands_leave_out_the_same_and_say_so(tmp_path, bpe_path, run):
    (tmp_path / "in" / "out").mkdir(parents=True)
    for name in ("a.txt", "out/b.txt"):
        (tmp_path / "in" / name).write_text("Some words of a text. " * 50)
    (tmp_path / "in" / "c.doc").write_text("no text")
    common = ["--source", "text", "--input", tmp_path / "in", "--output", tmp_path / "in" / "out"]
    code, out, _ = run("build", *common, "--tokenizer", bpe_path, "--dry-run")
    assert code == 0
    assert "documents    1\n" in out
    assert "left out of the input: 1 with another suffix" in out
    common[-1] = tmp_path / "vocabulary"
    code, _, error = run("tokenizer", *common, "--vocab-size", "300")
    assert code == 0
    assert "warning: left out of the input: 1 with another suffix" in error


def test_a_file_by_several_paths_is_built_once(tmp_path, monkeypatch, corpus, bpe_path, run):
    """Spellings of its path, links to it, another name of it; and it is said."""
    file = corpus / "00.txt"
    (corpus / "link.txt").symlink_to(file)
    os.link(file, corpus / "other.txt")
    monkeypatch.chdir(tmp_path)
    given = [file, "corpus/00.txt", f"{corpus}/../corpus/00.txt", corpus, corpus / "other.txt"]
    code, out, error = run(
        "build", "--source", "text", "--input", *given, "--tokenizer", bpe_path,
        "--output", tmp_path / "out", "--validation-fraction", "0",
    )  # fmt: skip
    assert code == 0, error
    assert "train: 12 documents" in out
    assert "left out of the input: 4 the same as another (first " in error

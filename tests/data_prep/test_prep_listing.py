"""The files of an input: each once, in the order of their paths, whatever their number."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.errors import UsageError
from data_prep.sources import find_files
from data_prep.sources.base import InputFile
from data_prep.sources.listing import FileList

NAMES = st.text("ab-./ é", min_size=1, max_size=6).map(lambda name: name.strip("/."))


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
    several = [expected[-1], str(root), f"{root}/*", expected[0]]
    found = find_files(several, (".txt",))
    assert [f.path for f in found if f.path.endswith(".txt")] == expected


def test_a_long_list_is_kept_small(monkeypatch):
    monkeypatch.setattr("data_prep.sources.listing.PACK", 100)
    files = [InputFile(f"/corpus/urlsf_subset{n % 7}/{n:07d}.txt", n) for n in range(1234)]
    listed = FileList(iter(files))
    assert list(listed) == list(listed) == files
    assert (len(listed), listed.num_bytes) == (1234, sum(range(1234)))
    assert files[1000] in listed
    assert InputFile("/corpus/none", 5) not in listed
    assert sum(map(len, listed._packed)) < 40 * len(files)


def test_links_to_folders_are_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "b.txt").symlink_to(tmp_path / "a" / "x.txt")
    found = [file.path for file in find_files([str(tmp_path)], (".txt",))]
    assert found == [str(tmp_path / "a" / "x.txt"), str(tmp_path / "b.txt")]


def test_a_folder_that_cannot_be_read(corpus, build_closed):
    """It is not passed over in silence."""
    (corpus / "closed").mkdir(0)
    code, _, said = build_closed()
    (corpus / "closed").chmod(0o700)
    assert said == f"error: input {corpus}/closed cannot be read: Permission denied\n"
    assert code == 2
    with pytest.raises(UsageError, match="holds no file that ends in"):
        find_files([str(corpus / "closed")], (".txt",))

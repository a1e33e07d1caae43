"""The steps that benchmarks/bench_prep.py times are those of the code as it is."""

from __future__ import annotations

import pytest

from benchmarks import bench_prep


@pytest.mark.parametrize("source", ["parquet", "openwebtext"])
def test_all_steps_are_timed(tmp_path, bpe_path, source):
    write = {"parquet": bench_prep.write_parquet, "openwebtext": bench_prep.write_release}[source]
    path = tmp_path / {"parquet": "x.parquet", "openwebtext": "release"}[source]
    write(path, ["The old man sailed. He came home."] * 50)
    spent = bench_prep.breakdown(source, path, bpe_path, tmp_path / "out")
    steps = {"clean", "segment", "encode", "lay out", "write units", "assemble and hash shards"}
    assert steps < set(spent)

"""Triton without a GPU: its own just-in-time path and compilers, under a driver that runs nothing.

    python benchmarks/forecast/no_gpu.py --arch 80 90 --dims 64 --dtypes bfloat16 --pairs 1 33

Calls the kernels of gpst/kernels/gpu (with --levels: all of them) as a GPU would be asked to, and
prints a line of JSON for each compiled form: registers, bytes of local memory (what does not fit
into registers is spilt there). Exit code 1 where a kernel does not compile or spills more than
--spare. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from gpst.chart.layout import ChartLayout, build_layout  # noqa: E402

_SHARED = {80: 166912, 90: 232448}
"""Bytes of shared memory that a block may have (CUDA's programming guide, table of features)."""

SPARE = 16
"""Bytes a thread that may lie in local memory: the walks, at 255 registers, keep two addresses
there."""


@dataclass(frozen=True)
class Compiled:
    """One form of a kernel on one architecture."""

    kernel: str
    arch: int
    registers: int
    local_bytes: int
    """Of spilt registers and arrays, a thread."""


class NoGPU:
    """Stands in for Triton's driver of CUDA: compiles for an architecture, launches nothing."""

    def __init__(self, arch: int) -> None:
        self.arch, self.utils = arch, self
        self.compiled: list[Compiled] = []
        self.launches = 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.arch  # kernels are cached by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return divmod(self.arch, 10)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": _SHARED[self.arch], "multiprocessor_count": 108}

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(*_: Any, **__: Any) -> None:
            self.launches += 1

        return launch

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[Any, Any, int, int, int]:
        registers, local = _resources(binary)
        self.compiled.append(Compiled(name, self.arch, registers, local))
        return object(), object(), registers, local, 1024


def _resources(binary: bytes) -> tuple[int, int]:
    """(registers, bytes of local memory) of the kernel in a binary."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        said = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = {name: int(number) for name, number in re.findall(r"(REG|LOCAL|STACK):(\d+)", said)}
    return found["REG"], found["LOCAL"] + found["STACK"]


def exercise(dim: int, dtype: torch.dtype, num_pairs: int) -> None:
    """Calls every kernel as the passes over a chart do, with and without dropout."""
    from gpst.kernels.gpu import pair, segments

    heads = dim // 32 if dim >= 256 else 4

    def tensor(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype)

    packed, gradient = tensor(2, num_pairs, 3 * dim), tensor(2, 2, num_pairs, dim)
    rows = tensor(2 * num_pairs, dim)
    for mask in (None, tensor(2, num_pairs, heads, 2)):
        _, weight = pair.pair_attention(packed, heads, mask)
        for routes in (1, 2):
            pair.pair_attention_backward(gradient[:routes], packed, weight, mask)
    normed, inverse_std = pair.add_norm(rows, rows)
    pair.add_norm_backward(gradient.flatten(1, 2), normed, inverse_std)
    for mask in (None, rows):
        pair.gelu(rows, mask)
    scores = torch.zeros(num_pairs)
    offsets = torch.arange(num_pairs + 1)
    for heights in (None, scores):
        mixed = segments.segment_mix(rows[:num_pairs], scores, offsets, 1.0, heights, bool(dim))
        segments.segment_mix_backward(
            rows[:num_pairs],
            mixed.weights,
            offsets,
            rows[:num_pairs].float(),
            1.0,
            heights,
            heights,
        )


def exercise_loss(dtype: torch.dtype) -> None:
    """Calls the vocabulary's loss, with and without gradient: in one block, in part of one, in
    many."""
    from gpst.kernels.gpu.cross_entropy import cross_entropy_

    for vocab in (1, 300, 50257):
        logits = torch.zeros(2, vocab, dtype=dtype)
        for gradient in (False, True):
            cross_entropy_(logits, torch.zeros(2, dtype=torch.int64), torch.zeros(2), gradient)


def exercise_trees(num_sentences: int) -> None:
    """Calls the kernels of whole charts."""
    from gpst.kernels.gpu import trees

    layout = _layout(num_sentences)
    marked = torch.zeros(layout.num_cells, dtype=torch.int64)
    scores = torch.zeros(layout.num_tokens)
    edges = layout.left, layout.right, layout.cut
    best = trees.best_trees(
        torch.zeros(len(layout.left)), layout.edge_start, layout.level_starts, *edges[:2], marked
    )
    total, z = trees.tree_likelihood(scores, layout.level_starts, best, edges, marked)
    trees.tree_likelihood_backward(scores, layout.level_starts, best, edges, marked, z, total)


def exercise_levels(dim: int, dtype: torch.dtype) -> None:
    """Calls the kernels of whole levels, with dropout, on a chart of large and small levels."""
    from gpst.chart import walk
    from gpst.chart.inside import inside
    from gpst.chart.outside import outside
    from gpst.config import CompositionConfig
    from gpst.layers.composition import Composition, Decomposition

    walk.LARGE = 40
    heads = dim // 32 if dim >= 256 else 4
    config = CompositionConfig(
        dim=dim,
        num_heads=heads,
        ffn_dim=4 * dim,
        num_layers=4,
        score_dim=min(dim, 128),
        dropout=0.1,
    )
    composition, decomposition = Composition(config).to(dtype), Decomposition(config).to(dtype)
    layout = _layout(8)
    leaves = torch.zeros(layout.num_tokens, dim, dtype=dtype, requires_grad=True)
    for recompute in (False, True):
        chart = inside(layout, composition, leaves, recompute=recompute)
        rebuilt = outside(layout, decomposition, chart.inside_ae, recompute)
        (rebuilt.sum() + chart.inside_ar.sum() + chart.heights.sum()).backward()


def _layout(num_sentences: int) -> ChartLayout:
    ends = np.cumsum([9] * num_sentences)
    return build_layout(np.random.default_rng(0).random(ends[-1]), ends)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16", "float32"])
    parser.add_argument("--pairs", type=int, nargs="+", default=[1, 2, 16, 33])
    parser.add_argument("--levels", action="store_true", help="the kernels of whole levels, too")
    parser.add_argument("--spare", type=int, default=SPARE, help="bytes that a form may spill")
    args = parser.parse_args()
    os.environ["GPST_KERNELS"] = "triton"
    spilt = 0
    for arch in args.arch:
        driver = NoGPU(arch)
        triton.runtime.driver.set_active(driver)  # type: ignore[arg-type]
        exercise_trees(3)
        for dtype in args.dtypes:
            exercise_loss(getattr(torch, dtype))
        for dim in args.dims:
            for dtype in args.dtypes:
                for num_pairs in args.pairs:
                    exercise(dim, getattr(torch, dtype), num_pairs)
                if args.levels:
                    exercise_levels(dim, getattr(torch, dtype))
        for form in driver.compiled:
            print(json.dumps(asdict(form)))
            spilt += form.local_bytes > args.spare
        print(json.dumps({"arch": arch, "forms": len(driver.compiled), "calls": driver.launches}))
    raise SystemExit(1 if spilt else 0)


if __name__ == "__main__":
    main()

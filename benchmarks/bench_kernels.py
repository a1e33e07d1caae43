"""Times of the kernels under the models, each against PyTorch's own form, in turns within one run.

    python benchmarks/bench_kernels.py                      # attention, dropout, heads, pair pieces
    python benchmarks/bench_kernels.py --device cuda --dtype bfloat16

The pieces of a pair layer are Triton's on a GPU (8,192 pairs) and numba's on a CPU (a chunk of 512
pairs). Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from hardware import describe
from stepping import Clock
from torch import Tensor

from gpst.kernels import pair
from gpst.kernels.attention import _Blockwise
from gpst.kernels.dropout import keep_mask
from gpst.model.losses import vocabulary_loss

Case = dict[str, Callable[[], object]]


def backward(function: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    """Forward and backward of a function at x."""
    x = x.detach().requires_grad_()
    return lambda: torch.autograd.grad(function(x).sum(), x)


def plain_attention(packed: Tensor, rate: float) -> Tensor:
    query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)


def cases(device: torch.device, dtype: torch.dtype) -> dict[str, Case]:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    packed, mask = random(1, 2048, 3, 12, 64), torch.empty(512, 1024, device=device)
    features, embedding = random(1024, 128), random(30522, 128) * 0.02
    targets = torch.randint(0, 30522, (1024,), device=device)
    cases: dict[str, Case] = {
        "heads, loss and gradients": {
            "ours": backward(lambda x: vocabulary_loss(x, embedding, targets), features),
            "torch": backward(
                lambda x: F.cross_entropy((x @ embedding.T).float(), targets, reduction="sum"),
                features,
            ),
        }
    }
    if device.type == "cpu":
        cases["attention, dropout 0.1"] = {
            "ours": backward(lambda x: _Blockwise.apply(x, 0.1), packed),
            "torch": backward(lambda x: plain_attention(x, 0.1), packed),
        }
        cases["attention, no dropout"] = {
            "ours": backward(lambda x: _Blockwise.apply(x, 1e-9), packed),
            "torch": backward(lambda x: plain_attention(x, 0.0), packed),
        }
        cases["dropout mask"] = {
            "ours": lambda: keep_mask(0.1, 7, mask.shape, mask.dtype, device),
            "torch": lambda: mask.bernoulli_(0.9),
        }
    return cases | pieces_of_a_pair(device, dtype)


def pieces_of_a_pair(device: torch.device, dtype: torch.dtype) -> dict[str, Case]:
    """What a layer over pairs does besides its products, two gradient routes."""
    kernels, size = ("numba", 512) if device.type == "cpu" else ("triton", 8192)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    pairs = random(2, size, 3 * 256)
    x, gradient = random(2, size, 256).flatten(0, 1), random(2, 2, size, 256)
    _, weight = pair.pair_attention(pairs, 8)
    normed, inverse_std = pair.add_norm(x, x.clone())
    pieces: dict[str, Callable[[], object]] = {
        "pair attention": lambda: pair.pair_attention(pairs, 8),
        "pair attention backward": lambda: pair.pair_attention_backward(gradient, pairs, weight),
        "residual and norm": lambda: pair.add_norm(x, x.clone()),
        "norm backward": lambda: pair.add_norm_backward(
            gradient.flatten(1, 2), normed, inverse_std
        ),
        "GELU and its slope": lambda: pair.gelu(x.clone()),
    }
    return {
        name: {"ours": _with_kernels(kernels, piece), "torch": _with_kernels("torch", piece)}
        for name, piece in pieces.items()
    }


def _with_kernels(choice: str, piece: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        os.environ["GPST_KERNELS"] = choice
        return piece()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    report = {}
    for name, forms in cases(torch.device(args.device), getattr(torch, args.dtype)).items():
        if args.only not in name:
            continue
        seconds: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(args.repeat + 1):
            for form, function in forms.items():
                clock = Clock(args.device)
                function()
                seconds[form].append(clock.lap())
        ratios = [a / b for a, b in zip(seconds["ours"], seconds["torch"], strict=True)][1:]
        median = {form: statistics.median(values[1:]) * 1e3 for form, values in seconds.items()}
        report[name] = {
            **{f"{form}_ms": round(ms, 3) for form, ms in median.items()},
            "ratio": round(statistics.median(ratios), 3),
            "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        }
        ours, plain = median["ours"], median["torch"]
        print(f"{name:28} ours {ours:9.3f} ms   torch {plain:9.3f} ms   {report[name]['ratio']}")
    head = {"benchmark": "kernels", "device": args.device, "dtype": args.dtype}
    print(json.dumps({**head, "torch": torch.__version__, "cases": report, "hardware": describe()}))


if __name__ == "__main__":
    main()

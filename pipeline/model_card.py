"""README.md of an exported model, made from its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def model_card(run: dict[str, Any], checkpoint: Path, num_parameters: int) -> str:
    """README.md of an exported model: what it is, its data, training and held-out figures."""
    kind = run["model"]["kind"]
    name = "Generative Pretrained Structured Transformer" if kind == "gpst" else "GPT-2 baseline"
    data = run["data"].get("path") or ", ".join(d["path"] for d in run["data"]["datasets"])
    train, last = run["train"], _last_metrics(checkpoint)
    # Only fine-tuning has such a file beside its data.
    how = "fine-tuned" if (Path(data) / "examples.json").is_file() else "trained from scratch"
    lines = [
        "---",
        "license: apache-2.0",
        "pipeline_tag: text-generation",
        f"tags: [{kind}, syntax, language-model]",
        "---",
        f"# {name}",
        "",
        f"{num_parameters:,} parameters, {how} on `{Path(data).name}` "
        f"(contexts of {run['data']['context_tokens']} tokens, {train['global_batch_contexts']} a "
        f"step, planned for {train['num_steps']} steps).",
        "",
    ]
    if last:
        lines += ["| measured last | |", "|---|---|"]
        lines += [f"| {key} | {value:.6g} |" for key, value in last.items()]
        lines.append("")
    trees = _last_trees(checkpoint)
    if trees:
        lines += ["Trees that it induced for the run's fixed sentences:", "```", *trees, "```", ""]
    use = (
        "from gpst import GPST\nmodel = GPST.from_pretrained(FOLDER)\n"
        'print(model.parse("The old man sails the boats."))\nprint(model.generate("The")[0].text)'
        if kind == "gpst"
        else "from transformers import GPT2LMHeadModel\n"
        "model = GPT2LMHeadModel.from_pretrained(FOLDER)"
    )
    lines += ["```python", use, "```", ""]
    return "\n".join(lines)


_CARD_METRICS = ("step", "tokens", "loss", "perplexity/token", "eval/perplexity/token",
                 "eval/joint_nats_per_token", "eval/bits_per_byte")  # fmt: skip


def _metrics(checkpoint: Path) -> list[dict[str, Any]]:
    """The run's metrics, if they lie where a run has them."""
    for folder in (checkpoint, checkpoint.parent.parent):
        file = folder / "metrics.jsonl"
        if file.is_file():
            lines = file.read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines if line.endswith("}")]
    return []


def _last_metrics(checkpoint: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in _metrics(checkpoint):
        found |= {key: line[key] for key in _CARD_METRICS if key in line}
    return {key: found[key] for key in _CARD_METRICS if key in found}


def _last_trees(checkpoint: Path) -> list[str]:
    found: dict[str, str] = {}
    for line in _metrics(checkpoint):
        found |= {k: v for k, v in line.items() if k.startswith("trees/") and isinstance(v, str)}
    return [found[key] for key in sorted(found)]

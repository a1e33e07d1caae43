"""README.md of an exported model, made from its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.checkpoint.trainer_state import TrainerState


def model_card(state: TrainerState, checkpoint: Path, num_parameters: int) -> str:
    """README.md of an exported model: what it is, its data, training, held-out figures and trees.

    Args:
        state: of the checkpoint.
        checkpoint: its folder; figures and trees come from the run that it lies in, if it does,
            and are no younger than the checkpoint.
    """
    run = state.config
    kind = run["model"]["kind"]
    name = "Generative Pretrained Structured Transformer" if kind == "gpst" else "GPT-2 baseline"
    data = run["data"].get("path") or ", ".join(d["path"] for d in run["data"]["datasets"])
    train = run["train"]
    figures = {"step": state.step, "tokens": state.tokens} | _last_metrics(checkpoint, state.step)
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
    lines += ["| measured last | |", "|---|---|"]
    lines += [f"| {key} | {_shown(value)} |" for key, value in figures.items()]
    lines.append("")
    trees = _last_trees(checkpoint, state.step)
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


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


_CARD_METRICS = ("loss", "perplexity/token", "eval/perplexity/token",
                 "eval/joint_nats_per_token", "eval/bits_per_byte")  # fmt: skip


def _lines(checkpoint: Path, name: str, step: int) -> list[dict[str, Any]]:
    """Lines up to a step of a file of the run, if it lies where a run has it."""
    file = checkpoint.parent.parent / name
    if not file.is_file():
        return []
    # The last line may be cut where the run was killed.
    whole = [line for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [values for line in whole if (values := json.loads(line)).get("step", 0) <= step]


def _last_metrics(checkpoint: Path, step: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in _lines(checkpoint, "metrics.jsonl", step):
        found |= {key: line[key] for key in _CARD_METRICS if key in line}
    return {key: found[key] for key in _CARD_METRICS if key in found}


def _last_trees(checkpoint: Path, step: int) -> list[str]:
    lines = _lines(checkpoint, "samples.jsonl", step)
    return lines[-1]["trees"] if lines else []

"""README.md of an exported model, made from its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.checkpoint.trainer_state import TrainerState
from pipeline.monitor.metrics import shown_in
from pipeline.monitor.metrics_file import read_metrics
from pipeline.run_folder import METRICS, SAMPLES


def model_card(state: TrainerState, checkpoint: Path, num_parameters: int) -> str:
    """README.md of an exported model: what it is, its data, training, held-out metrics and trees.

    Args:
        state: of the checkpoint.
        checkpoint: its folder; metrics and trees come from its run, if any, up to
            its step.
    """
    run = state.config
    kind = run["model"]["kind"]
    name = "Generative Pretrained Structured Transformer" if kind == "gpst" else "GPT-2 baseline"
    data = run["data"].get("path") or ", ".join(d["path"] for d in run["data"]["datasets"])
    train = run["train"]
    metrics = {"step": state.step, "tokens": state.tokens} | _last_metrics(checkpoint, state.step)
    # Only fine-tuning has such a file beside its data.
    how = "fine-tuned" if (Path(data) / "examples.json").is_file() else "trained from scratch"
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: transformers",
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
    lines += [f"| {key} | {_shown(value)} |" for key, value in metrics.items()]
    lines.append("")
    trees = _last_trees(checkpoint, state.step)
    if trees:
        lines += ["Trees that it induced for the run's fixed sentences:", "```", *trees, "```", ""]
    use = (
        "from gpst import GPST\nmodel = GPST.from_pretrained(FOLDER)\n"
        'print(model.parse("The old man sails the boats."))\n\n'
        "from transformers import AutoModelForCausalLM, AutoTokenizer  # pip install gpst\n"
        "tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)\n"
        "model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)\n"
        'given = tokenizer("The old man", return_tensors="pt")\n'
        "print(tokenizer.decode(model.generate(**given, max_new_tokens=20)[0]))"
        if kind == "gpst"
        else "from transformers import GPT2LMHeadModel\n"
        "model = GPT2LMHeadModel.from_pretrained(FOLDER)"
    )
    lines += ["```python", use, "```", ""]
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _lines(checkpoint: Path, name: str, step: int) -> list[dict[str, Any]]:
    """Lines up to a step of a file of the run; none for a checkpoint outside a run."""
    return [line for line in read_metrics(checkpoint.parent.parent / name) if line["step"] <= step]


def _last_metrics(checkpoint: Path, step: int) -> dict[str, float]:
    newest: dict[str, float] = {}
    for line in _lines(checkpoint, METRICS, step):
        newest |= line
    # A number that is not finite is written as null.
    names = [metric.name for metric in shown_in("card")]
    return {name: newest[name] for name in names if newest.get(name) is not None}


def _last_trees(checkpoint: Path, step: int) -> list[str]:
    lines = _lines(checkpoint, SAMPLES, step)
    return lines[-1]["trees"] if lines else []

"""All metrics of a run, by their names in metrics.jsonl and TensorBoard.

To add one: an entry here, and its value where it is computed (train/step.py, train/trainer.py,
evaluate/held_out.py, ...). The names of losses and statistics come from the model
(`GPSTModel.LOSSES`, `GPSTModel.STATISTICS`); their entries end in `*`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["terminal", "hparams", "chart", "table", "card"]
"""Besides TensorBoard's curves: progress lines, TensorBoard's HParams tab, charts and the table of
training runs in the report, the card of an exported model."""

SCORE = "eval/score"
"""What the best epoch of a fine-tuning is chosen by; the highest is the best."""


@dataclass(frozen=True)
class Metric:
    """What a number is and where it is shown."""

    name: str
    title: str
    unit: str = ""
    best: Literal["lowest", "highest"] | None = None
    """None where neither is better."""
    places: tuple[Place, ...] = ()
    column: str = ""
    """Heading in the report's table; by default the name."""
    log_scale: bool = False
    """Of its chart."""


_METRICS = (
    Metric("step", "Optimizer steps", places=("table",), column="steps"),
    Metric("tokens", "Tokens trained on, over all ranks", places=("table",)),
    Metric("samples", "Contexts trained on, over all ranks"),
    Metric("time_s", "Time since the start of the run, earlier processes included", "s"),
    Metric(
        "loss", "Training loss", "nats", "lowest",
        places=("terminal", "hparams", "chart", "table", "card"),
    ),
    Metric("loss/*", "A term of the loss: autoencoding, token, ...", "nats", "lowest"),
    Metric(
        "perplexity/token", "Training perplexity per token", best="lowest",
        places=("terminal", "hparams", "chart", "card"), log_scale=True,
    ),
    Metric("perplexity/type", "Training perplexity of GEN or COMP, per action", best="lowest"),
    Metric(
        "eval/perplexity/token", "Held-out perplexity per token", best="lowest",
        places=("hparams", "chart", "table", "card"), column="held-out perplexity", log_scale=True,
    ),
    Metric("eval/perplexity/type", "Held-out perplexity of GEN or COMP, per action", best="lowest"),
    Metric(
        "eval/joint_nats_per_token", "Held-out -log p(tokens, actions)", "nats per token",
        "lowest", places=("card",),
    ),
    Metric(
        "eval/bits_per_byte", "The same by the size of the text", "bits per byte", "lowest",
        places=("hparams", "card"),
    ),
    Metric("eval/loss/*", "A term of the loss on held-out contexts", "nats", "lowest"),
    Metric("eval/f1", "F1 against evaluate.treebank, mean of the sentences", "%", "highest"),
    Metric("eval/corpus_f1", "F1 against evaluate.treebank, all spans at once", "%", "highest"),
    Metric(
        SCORE, "Score after each epoch", "%", "highest",
        places=("chart", "table"), column="last score",
    ),
    Metric("structure/height", "Mean height of the trees", places=("chart",)),
    Metric("structure/*", "A statistic of the induced trees or their chart"),
    Metric("eval/structure/*", "A statistic of the induced trees of held-out contexts"),
    Metric("trees/change", "Share of spans of monitor.sentences that are new"),
    Metric("learning_rate", "Learning rate"),
    Metric("parser_learning_rate", "Learning rate of the parser"),
    Metric("noise", "Gumbel noise on the parser's scores"),
    Metric("temperature", "Temperature of the softmax over splits"),
    Metric("gradient_norm", "Gradient norm before clipping"),
    Metric("skipped_steps", "Steps without an update since the start of the run", "", "lowest"),
    Metric("tokens_per_second", "Speed over all ranks, without pauses", "tokens/s", "highest"),
    Metric("tflops", "Arithmetic of all ranks", "TFLOP/s", "highest"),
    Metric("mfu", "Share of the peak arithmetic", best="highest"),
    Metric("memory_gib", "Peak memory of the rank that takes most", "GiB", "lowest"),
)  # fmt: skip
METRICS = {metric.name: metric for metric in _METRICS}


def shown_in(place: Place) -> list[Metric]:
    """The metrics that are shown in a place, in order."""
    return [metric for metric in _METRICS if place in metric.places]

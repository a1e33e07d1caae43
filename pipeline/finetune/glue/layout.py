"""The GLUE tasks of the paper: their columns, classes, metrics and file names."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.finetune.glue.config import GlueName


@dataclass(frozen=True)
class Layout:
    """One task, in the TSV files of GLUE and in the columns of the Hugging Face hub."""

    folder: str
    """Of the TSV files."""
    tsv: tuple[str, ...]
    """Columns of the text or the two texts in the TSV files."""
    hub: tuple[str, ...]
    """The same on the hub."""
    tsv_label: str
    classes: tuple[str, ...]
    """As the GLUE server wants them; their order is that of the hub's numbers."""
    metrics: tuple[str, ...]
    """The first one chooses the best epoch."""
    test_id: str = "index"
    dev: tuple[str, ...] = ("dev",)
    test: tuple[str, ...] = ("test",)
    submission: tuple[str, ...] = ()
    """Names of the server's files, one for each of `test`."""

    @property
    def submissions(self) -> tuple[str, ...]:
        return self.submission or (self.folder,)


_YES_NO = ("0", "1")
_ENTAILS = ("entailment", "not_entailment")

LAYOUTS: dict[GlueName, Layout] = {
    "sst2": Layout("SST-2", ("sentence",), ("sentence",), "label", _YES_NO, ("accuracy",)),
    "cola": Layout("CoLA", ("sentence",), ("sentence",), "label", _YES_NO, ("matthews",)),
    "mrpc": Layout(
        "MRPC",
        ("#1 String", "#2 String"),
        ("sentence1", "sentence2"),
        "Quality",
        _YES_NO,
        ("f1", "accuracy"),
    ),
    "qqp": Layout(
        "QQP",
        ("question1", "question2"),
        ("question1", "question2"),
        "is_duplicate",
        _YES_NO,
        ("f1", "accuracy"),
        test_id="id",
    ),
    "qnli": Layout(
        "QNLI", ("question", "sentence"), ("question", "sentence"), "label", _ENTAILS, ("accuracy",)
    ),
    "rte": Layout(
        "RTE",
        ("sentence1", "sentence2"),
        ("sentence1", "sentence2"),
        "label",
        _ENTAILS,
        ("accuracy",),
    ),
    "mnli": Layout(
        "MNLI",
        ("sentence1", "sentence2"),
        ("premise", "hypothesis"),
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        dev=("dev_matched", "dev_mismatched"),
        test=("test_matched", "test_mismatched"),
        submission=("MNLI-m", "MNLI-mm"),
    ),
}

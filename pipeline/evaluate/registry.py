"""The evaluations of `launch/evaluate.sh TASK`.

The module of one has its command-line options (`Options`, see options.py), a `SUMMARY` for --help,
and `run(options)`, which returns the exit code. It is imported when its task is run.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationEntry:
    """An evaluation that the command offers."""

    module: str
    summary: str
    example: str
    """Arguments, for --help."""


EVALUATIONS = {
    "perplexity": EvaluationEntry(
        "pipeline.evaluate.perplexity",
        "perplexity of a GPST and a GPT-2 on a dataset's held-out contexts",
        "--model runs/demo/exported --gpt2 runs/demo-gpt2/exported --data data/demo",
    ),
    "grammar_induction": EvaluationEntry(
        "pipeline.evaluate.grammar_induction.evaluation",
        "F1 of induced trees against a treebank",
        "--model runs/demo/exported --trees data/ptb/test.txt",
    ),
    "syntactic_generalization": EvaluationEntry(
        "pipeline.evaluate.syntaxgym.evaluation",
        "accuracy on SyntaxGym's test suites",
        "--model runs/demo/exported --suites data/syntaxgym",
    ),
}

"""Which parameters the optimizer treats alike: matrices decay; vectors and embeddings do not."""

from __future__ import annotations

from torch import nn

PARSER = "parser"
"""First word of the groups with the parser's learning rate."""
NO_DECAY = "no_decay"
"""Last words of the groups without weight decay."""


def decay_groups(
    model: nn.Module, parser: nn.Module | None = None
) -> dict[str, list[nn.Parameter]]:
    """Every parameter once: "decay" and "no_decay", and "parser" and "parser_no_decay" of a parser.

    No decay have the tables of embeddings (of words and positions, those of a parser too), roles,
    norms, biases and single vectors: the outside vector of the root, the ablation's constituent.
    """
    of_parser = set() if parser is None else {id(p) for p in parser.parameters()}
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    names = (
        ["decay", NO_DECAY]
        if parser is None
        else [PARSER, f"{PARSER}_{NO_DECAY}", "decay", NO_DECAY]
    )
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in names}
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or id(parameter) in embeddings or name.endswith(".role")
        if id(parameter) in of_parser:
            group = f"{PARSER}_{NO_DECAY}" if plain else PARSER
        else:
            group = NO_DECAY if plain else "decay"
        groups[group].append(parameter)
    return groups

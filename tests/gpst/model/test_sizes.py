"""Sizes that no model has."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from gpst.config import ConfigError, config_from_dict


@pytest.mark.parametrize(
    ("section", "name", "most"),
    [
        ("", "num_token_layers", 1_000),
        ("composition", "num_decomposition_layers", 1_000),
        ("parser", "num_layers", 1_000),
        ("", "ffn_dim", 1_000_000),
        ("composition", "score_dim", 1_000_000),
        ("", "max_context_tokens", 10_000_000),
    ],
)
def test_sizes_beyond_any_model_are_refused(section, name, most):
    """They took hours to allocate, without a word."""
    for value, fits in ((most, True), (most + 1, False)):
        given: dict[str, Any] = {name: value}
        given = {section: given} if section else given
        with nullcontext() if fits else pytest.raises(ConfigError) as caught:
            config_from_dict({"vocab_size": 9, "bos_token_id": 0} | given)
        if caught is not None:
            where = f"{section}.{name}" if section else name
            line = f"{where}: {value} is not allowed; it must be in [1, {most}]"
            assert str(caught.value) == line

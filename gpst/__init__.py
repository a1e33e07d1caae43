"""GPST: Generative Pretrained Structured Transformers (ACL 2024, arXiv 2403.08293).

`from gpst import GPST; model = GPST.from_pretrained(folder)` gives an exported model with its
tokenizer: parse, generate, surprisal, embed. It is loaded on first use, so that importing gpst
stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpst.api import GPST

__all__ = ["GPST", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "GPST":
        from gpst.api import GPST

        return GPST
    raise AttributeError(f"module 'gpst' has no attribute {name!r}")

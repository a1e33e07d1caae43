"""SyntaxGym suites small enough to be scored by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def suite(name: str, formulas: list[str], items: list[dict[str, list[str]]]) -> dict[str, Any]:
    """A suite in SyntaxGym's layout, from the regions' contents by condition."""
    regions = len(next(iter(items[0].values())))
    return {
        "meta": {"name": name, "metric": "sum", "comment": "", "author": ""},
        "region_meta": {str(k + 1): f"region_{k + 1}" for k in range(regions)},
        "predictions": [{"type": "formula", "formula": formula} for formula in formulas],
        "items": [
            {
                "item_number": number,
                "conditions": [
                    {
                        "condition_name": condition,
                        "regions": [
                            {"region_number": k, "content": content}
                            for k, content in enumerate(contents, 1)
                        ],
                    }
                    for condition, contents in item.items()
                ],
            }
            for number, item in enumerate(items, 1)
        ],
    }


AGREEMENT = suite(
    "number_prep",
    ["(2;%match%) < (2;%mismatch%)"],
    [
        {"match": ["The dog", "is", "here."], "mismatch": ["The dog", "are", "here."]},
        {"match": ["The cats", "are", ""], "mismatch": ["The cats", "is", ""]},
        {"match": ["", "is", ""], "mismatch": ["", "am", ""]},
    ],
)
PATHS = suite(
    "npz_obj",
    ["[(4;%plain%) > (4;%comma%)] & [(2;%comma%) = 3]", "(*;%plain%) = 12"],
    [
        {"plain": ["As he ", "", " ran", "fell"], "comma": ["As he ", ",", " ran", "fell ."]},
        {"plain": ["As he he", "", " ran", "is"], "comma": ["As he he", ",", " ran", "am ."]},
    ],
)
ALONE = suite("my-own", ["(1;%a%) > (2;%a%)"], [{"a": ["is", "am"]}])


def write_suites(folder: Path) -> Path:
    """Writes the three suites and a file that is none into a new folder."""
    folder.mkdir()
    for content in (AGREEMENT, PATHS, ALONE):
        (folder / f"{content['meta']['name']}.json").write_text(json.dumps(content))
    (folder / "notes.txt").write_text("no suite")
    return folder

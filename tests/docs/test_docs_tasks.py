"""The commands of docs/reproduce.md name what is there."""

from __future__ import annotations

import re

from pipeline.config.run import REPOSITORY, load_config
from pipeline.finetune.config import load_finetune_config

TEXT = (REPOSITORY / "docs" / "reproduce.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """The lines of its code blocks, with loops written out."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL):
        block = block.replace("\\\n", " ")
        for head, body in re.findall(r"for (.*?); do\n(.*?)done", block, re.DOTALL):
            name, _, values = head.partition(" in ")
            for value in values.split():
                own = body.replace(f"${{{name}}}", value).replace(f"${name}", value)
                found += own.splitlines()
        found += re.sub(r"for .*?done", "", block, flags=re.DOTALL).splitlines()
    return [line.strip() for line in found if line.strip()]


def test_every_file_that_a_command_names_is_there():
    lines = commands()
    assert len(lines) > 40
    for line in lines:
        for path in re.findall(r"(?:configs|launch|benchmarks)/[\w./-]+", line):
            assert (REPOSITORY / path).is_file(), line
        assert "$" not in line


def test_every_training_command_has_a_configuration_that_loads():
    for line in commands():
        words = line.split()
        if "launch/pretrain.sh" in words:
            load_config(REPOSITORY / words[words.index("--config") + 1])
        if "launch/finetune.sh" in words:
            overrides = [word for word in words if re.fullmatch(r"[\w.]+=\S+", word)]
            config = load_finetune_config(
                REPOSITORY / words[words.index("--config") + 1], overrides
            )
            assert config.init
            assert str(config.init).endswith("/exported")


def test_every_table_of_the_paper_has_its_fine_tunings():
    finetunings = [line for line in commands() if "launch/finetune.sh" in line]
    paths = {path.name for path in (REPOSITORY / "configs" / "finetune").glob("*.yaml")}
    for name in paths - {"miniature.yaml"}:  # of `make miniature`
        assert any(name in line for line in finetunings), name

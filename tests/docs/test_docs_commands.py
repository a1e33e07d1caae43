"""The commands of README and docs: each is run by a test or listed with the reason why not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.config.run import REPOSITORY as ROOT
from pipeline.config.run import load_config

sys.path.insert(0, str(ROOT / "docs" / "generate"))
import reference

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ENTRIES = yaml.safe_load((ROOT / "docs" / "commands.yaml").read_text())
PROGRAMS = re.compile(
    r"(?:[A-Z_]+=\S+ )*(source|python|bash|deepspeed|make|pip|gpst-\w+|tensorboard|sbatch|srun"
    r"|mpirun|torchrun|tail|git|python3)(?= )"
)


def commands_of(text: str) -> list[str]:
    """Lines of its ```bash blocks; indented lines and `code` that start with a program."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        found += [line for line in lines if not re.match(r"\s*(for .*; do|done|#.*|)$", line)]
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()
    found += [line for line in outside if line.startswith("    ") and PROGRAMS.match(line.strip())]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found += [code for code in inline if PROGRAMS.match(code) and " " in code and "..." not in code]
    return [re.sub(r"\s+# .*", "", line).strip() for line in found]


ALL = [(page.name, command) for page in PAGES for command in commands_of(page.read_text())]


def entry_of(command: str) -> dict[str, str] | None:
    return next((entry for entry in ENTRIES if re.search(entry["pattern"], command)), None)


def test_every_command_is_run_or_listed_and_no_entry_is_left_over():
    assert len(ALL) > 80
    used = set()
    for page, command in ALL:
        assert PROGRAMS.match(command), f"{page}: {command}: what program is this?"
        entry = entry_of(command)
        assert entry is not None, f"{page}: {command}: add it to docs/commands.yaml"
        used.add(entry["pattern"])
    assert used == {entry["pattern"] for entry in ENTRIES}
    for entry in ENTRIES:
        assert entry.get("reason") or (ROOT / entry["run_by"]).is_file(), entry
        for path in re.findall(r"tests/[\w/]+\.py", entry.get("reason", "")):
            assert (ROOT / path).is_file(), path


def test_every_file_that_a_command_names_is_there():
    for page, command in ALL:
        for path in re.findall(r"(?:configs|launch|benchmarks)/[\w./-]+\w", command):
            assert "$" in command or (ROOT / path).exists(), f"{page}: {command}"


def test_every_configuration_of_a_training_command_loads_with_its_overrides():
    checked = 0
    for _, command in ALL:
        file = re.search(r"--config (configs/run/\S+)", command)
        if file and "$" not in command and "..." not in command:
            overrides = re.findall(r"(?<= )[a-z_.]+=\S+", command.split("--config")[1])
            load_config(ROOT / file[1], overrides)
            checked += 1
    assert checked >= 8


def test_every_option_exists():
    helps = {}
    for name, (script, main, before) in reference.command_list().items():
        key = name.split("launch/")[-1].replace("python -m ", "")
        helps[key] = helps[f"{script} {' '.join(before)}".strip()] = (main, before)
    texts: dict[str, str] = {}
    checked = 0
    for page, command in ALL:
        keys = [key for key in helps if re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", command)]
        if not keys:
            continue
        key = max(keys, key=len)
        own = command.split(key, 1)[1]
        text = texts.setdefault(key, reference.help_of(*helps[key]))
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", own):
            assert option in text, f"{page}: {command}: {option}"
            checked += 1
    assert checked > 60


TEXT = "The people saw the old dog. We must build a new world!\n\nA child has three apples.\n" * 80
SMALL = [
    "train.num_steps=4", "data.context_tokens=32", "train.micro_batch_contexts_per_rank=1",
    "checkpoint.best_metric=null", "evaluate.max_contexts=2",
]  # fmt: skip


def run_all(page: str, folder: Path) -> list[str]:
    """Runs the commands of a page that name this file, in a folder that looks like the checkout."""
    for name in ("launch", "configs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "texts").mkdir()
    for number in range(8):
        (folder / "texts" / f"{number}.txt").write_text(f"Text {number}. {TEXT}")
    (folder / "sentences.txt").write_text("We must build a new world.\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    environ |= {"LOCAL_SIZE": "1", "OMP_NUM_THREADS": "1"}
    done = []
    for command in commands_of((ROOT / "docs" / page).read_text()):
        if (entry_of(command) or {}).get("run_by") != "tests/docs/test_docs_commands.py":
            continue
        smaller = " ".join([command, *SMALL]) if "pretrain.sh" in command else command
        found = subprocess.run(
            ["bash", "-c", smaller], cwd=folder, env=environ, capture_output=True, text=True,
            timeout=600,
        )  # fmt: skip
        expected = (0, 1) if "doctor" in command else (0,)  # a machine may lack something
        assert found.returncode in expected, f"{command}: {found.stdout} {found.stderr}"
        assert "Traceback" not in found.stderr
        done.append(command)
    return done


@pytest.mark.slow
def test_the_quickstart_runs_as_it_is_written(tmp_path):
    done = run_all("quickstart.md", tmp_path)
    assert len(done) >= 11
    assert (tmp_path / "runs" / "mine" / "exported" / "config.json").is_file()

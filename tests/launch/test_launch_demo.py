"""`make demo`, killed between its commands and run again: the script itself, on a small text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "launch" / "demo.sh"
PARAGRAPH = "The farmer saw the old dog number {}. A child has found {} red apples!\n\n"
SETTINGS = (
    "train.num_steps=4 data.context_tokens=32 checkpoint.every_steps=2 monitor.log_every_steps=1 "
    "evaluate.every_steps=2 evaluate.max_contexts=2"
)
TOKENIZER, BUILD, VERIFY, HALF, REST, CONVERT, GPT2, CONVERT_GPT2 = range(1, 9)  # in this order
NUM_COMMANDS = 12


def demo(folder: Path, kill_before: int | None = None) -> list[str]:
    """What the demo printed; killed with all its processes when it names that command."""
    folder.mkdir(exist_ok=True)
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(PARAGRAPH.format(n, n + 7) for n in range(300)))
    environ = os.environ | {
        "INPUT": str(text),
        "OUTPUT": str(folder),
        "SETTINGS": SETTINGS,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(DEMO.parents[1]),
    }
    printed, commands = [], 0
    with (
        open(folder / "stderr", "w+", encoding="utf-8") as errors,
        subprocess.Popen(
            ["bash", DEMO], env=environ, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line.rstrip("\n"))
            commands += line.startswith("$ ")
            if "exported already" in line:
                commands += CONVERT_GPT2 - CONVERT if "gpt2" in line else CONVERT - VERIFY
            if commands == kill_before:
                os.killpg(process.pid, signal.SIGKILL)
                break
        code = process.wait()
        errors.seek(0)
        wanted = 0 if kill_before is None else -signal.SIGKILL
        assert code == wanted, errors.read() + "\n".join(printed)
    return printed


def files(folder: Path) -> dict[str, bytes]:
    """Name -> contents of all files below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.slow
def test_data_made_before_a_kill_is_not_made_again(tmp_path):
    demo(tmp_path, kill_before=BUILD)
    tokenizer = files(tmp_path / "data" / "demo-text-txt-tokenizer")
    assert "tokenizer_config.json" in tokenizer  # it is written last
    demo(tmp_path, kill_before=HALF)
    data = files(tmp_path / "data")
    printed = demo(tmp_path, kill_before=HALF)
    assert files(tmp_path / "data") == data
    assert files(tmp_path / "data" / "demo-text-txt-tokenizer") == tokenizer
    assert any("demo-text-txt-tokenizer: complete already" in line for line in printed)


@pytest.mark.slow
@pytest.mark.dist
def test_killed_between_any_two_commands_the_demo_ends_as_one_left_alone(tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    printed = demo(undisturbed)
    assert sum(line.startswith("$ ") for line in printed) == NUM_COMMANDS
    assert printed[-5].startswith("Done.")
    before = files(undisturbed)
    again = demo(undisturbed)
    assert again[-5:] == printed[-5:]
    assert sum("exported already" in line for line in again) == 2
    assert sum(line.startswith("$ ") for line in again) == NUM_COMMANDS - (CONVERT_GPT2 - VERIFY)
    for command in range(BUILD, NUM_COMMANDS + 1):
        demo(killed, kill_before=command)
    assert demo(killed)[-5].startswith("Done.")
    for folder in (undisturbed, killed):
        after = files(folder)
        for name, contents in before.items():
            if name.endswith(("exported/model.safetensors", ".npy", "/tokenizer.json")):
                assert after[name] == contents, (folder, name)
    assert any(name.endswith("exported/model.safetensors") for name in before)

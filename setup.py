"""What pyproject.toml cannot say: a wheel holds one package, `gpst`.

In the checkout `pipeline` and `data_prep` lie beside `gpst`; installed under such general names
they would shadow other people's. So a wheel has them as `gpst.pipeline` and `gpst.data_prep`, with
configs/ and launch/ in `gpst.pipeline.shipped`, and names them so wherever a source says them. An
editable installation is the checkout itself.
"""

import re
import sys
from pathlib import Path

from setuptools import Distribution, find_namespace_packages, setup
from setuptools.command.build_py import build_py

INSIDE = r"(pipeline|data_prep)\b"
RENAMED = [  # every pattern keeps the number of lines, and leaves alone what it has made
    (re.compile(rf"^(\s*)(from|import) {INSIDE}", re.MULTILINE), r"\1\2 gpst.\3"),
    (re.compile(rf"(?<=[\"']){INSIDE}(?=[.:]\w|[.]{{)"), r"gpst.\1"),
    (re.compile(rf"-m {INSIDE}"), r"-m gpst.\1"),
    (re.compile(r"python -m launch\.demo"), "gpst-demo"),
    (re.compile(r"(bash|deepspeed) launch/pretrain\.sh"), "gpst-train"),
    (re.compile(r"(bash|deepspeed) launch/(\w+)\.sh"), r"gpst-\2"),
]
SHIPPED = {f"gpst.pipeline.shipped.{name}": name for name in ("configs", "launch")}
MOVED = {"gpst.pipeline": "pipeline", "gpst.data_prep": "data_prep", **SHIPPED}
OF_CHECKOUT = ["demo.sh", "demo_model.sh", "install.sh", "miniature.sh", "typed.bash"]  # of make
EDITABLE = "editable_wheel" in sys.argv


class InOnePackage(build_py):
    """Copies the sources, then names the moved packages as they are called in the wheel."""

    def run(self) -> None:
        super().run()
        for name in () if EDITABLE else self.get_outputs(include_bytecode=False):
            path = Path(name)
            if path.suffix in (".py", ".sh", ".bash", ".yaml"):
                source = text = path.read_text(encoding="utf-8")
                for pattern, name_inside in RENAMED:
                    text = pattern.sub(name_inside, text)
                if text != source:
                    path.write_text(text, encoding="utf-8")


class Scripts(Distribution):
    """Console scripts, which pyproject.toml names as the checkout has them."""

    def parse_config_files(self, *arguments, **options) -> None:
        super().parse_config_files(*arguments, **options)
        scripts = (self.entry_points or {}).get("console_scripts", [])
        scripts[:] = [re.sub(rf"(?<== ){INSIDE}", r"gpst.\1", script) for script in scripts]


def _packages(name: str) -> list[str]:
    return find_namespace_packages(include=[name, f"{name}.*"])


if EDITABLE:
    setup(packages=[*_packages("gpst"), *_packages("pipeline"), *_packages("data_prep")])
else:
    setup(
        distclass=Scripts,
        cmdclass={"build_py": InOnePackage},
        packages=[
            *_packages("gpst"),
            *(f"gpst.{name}" for name in _packages("pipeline") + _packages("data_prep")),
            *SHIPPED,
        ],
        package_dir=MOVED,
        package_data={
            "gpst.web": ["page.html"],
            "gpst.pipeline.report": ["*.jinja"],
            "gpst.pipeline.shipped.configs": ["**/*.yaml"],
            "gpst.pipeline.shipped.launch": ["*.sh", "*.bash", "*.py", "slurm/*"],
        },
        exclude_package_data={"gpst.pipeline.shipped.launch": OF_CHECKOUT},
    )

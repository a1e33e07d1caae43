"""What pyproject.toml cannot say: the wheel brings configs/ and launch/ along, inside `pipeline`.

`pipeline.config.REPOSITORY` is the folder that holds both, in a checkout and in an installation.
"""

from setuptools import find_namespace_packages, setup

FOLDERS = {"pipeline.shipped.configs": "configs", "pipeline.shipped.launch": "launch"}

setup(
    packages=[
        *find_namespace_packages(include=["gpst", "gpst.*", "data_prep", "data_prep.*"]),
        *find_namespace_packages(include=["pipeline", "pipeline.*"]),
        *FOLDERS,
    ],
    package_dir=FOLDERS,
    package_data={
        "gpst.web": ["page.html"],
        "pipeline.shipped.configs": ["**/*.yaml"],
        "pipeline.shipped.launch": ["*.sh", "*.bash", "*.py", "slurm/*"],
    },
    exclude_package_data={"pipeline.shipped.launch": ["demo.sh"]},  # `make demo`, in the checkout
)

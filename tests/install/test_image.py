"""What the container file installs resolves from the package index, to the versions of the speed figures, with extras of jobs.

Building the image needs a registry of images.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import resolution

FILE = resolution.ROOT / "tools/train/containers/gpu.Dockerfile"
# Of Ubuntu 24.04, the base's.
PYTHON = "3.12"
# Extras that serve other ends than a rendered job: a check of logits, an API for notebooks.
NO_JOB = {"logits", "pandas"}
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/opt/lt as the file makes it: what it copies, and the constraints that its command writes."""
    root = tmp_path_factory.mktemp("image")
    for words in re.findall(r"^COPY (.+)$", FILE.read_text(), re.MULTILINE):
        *sources, target = words.split()
        for source in sources:
            place = root / target.lstrip("/")
            if (resolution.ROOT / source).is_dir():
                shutil.copytree(resolution.ROOT / source, place, ignore=IGNORED)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(resolution.ROOT / source, place)
    (command,) = re.findall(r"&& (sed -E .*?) \\$", FILE.read_text(), re.MULTILINE)
    subprocess.run(["bash", "-c", command.replace("/opt/lt", f"{root}/opt/lt")], check=True)
    return root


def requirements() -> list[str]:
    """The words of pip's command line that say what to install, with the variables of the file."""
    text = FILE.read_text().replace("\\\n", " ")
    for name, value in re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE):
        text = text.replace(f"${{{name}}}", value)
    (words,) = re.findall(r"pip install --no-cache-dir -c \S+ (.*?)&&", text)
    return shlex.split(words)


def test_everything_resolves(image: Path) -> None:
    words = [word.replace("/opt/lt", f"{image}/opt/lt") for word in requirements()]
    (image / "requirements.txt").write_text("\n".join(words))
    constraints = image / "opt/lt/image-constraints.txt"
    packages = {
        package.name: package.version
        for package in resolution.resolve([str(image / "requirements.txt")], PYTHON, constraints=constraints)
    }
    assert packages["torch"] == "2.11.0"
    assert "nvidia-cudnn-cu13" in packages
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", resolution.CONSTRAINTS.read_text(), re.MULTILINE))
    for name in (
        "flash-attn-4",
        "quack-kernels",
        "nvidia-cutlass-dsl",
        "tensorboard",
        "wandb",
        "s3fs",
        "pyarrow",
        "emerging-optimizers",
    ):
        assert packages[name] == pinned[name]
    assert packages["megatron-core"] == "0.19.2"


def test_the_figures_were_made_with_that_torch() -> None:
    (version,) = re.findall(r"^ARG TORCH_VERSION=(\S+)$", FILE.read_text(), re.MULTILINE)
    assert f"torch {version}" in (resolution.ROOT / "docs/guides/speed.md").read_text()


def test_every_extra_of_a_job_is_installed() -> None:
    installed = {word.partition("[")[0]: set(word.partition("[")[2].rstrip("]").split(",")) for word in requirements()}
    for distribution in resolution.DISTRIBUTIONS:
        project = tomllib.loads((resolution.ROOT / distribution / "pyproject.toml").read_text())["project"]
        extras = set(project.get("optional-dependencies", {})) - NO_JOB
        assert extras <= installed[f"/opt/lt/{distribution}"]

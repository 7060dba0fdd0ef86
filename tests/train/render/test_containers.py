"""The container file: hadolint is content, and what it copies and installs is there. Building it needs a registry."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "tools/train/containers").glob("*.Dockerfile"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_is_content(file: Path) -> None:
    done = subprocess.run([Path(sys.executable).parent / "hadolint", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_distribution_is_installed(file: Path) -> None:
    text = file.read_text()
    copied = [source for words in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for source in words.split()]
    # The version of the tools is that of the changelog.
    assert "CHANGELOG.md" in copied
    assert all((ROOT / source).exists() for source in copied)
    installed = set(re.findall(r'[ "]/opt/lt/([\w/]+)', text.partition("pip install --no-cache-dir -c")[2])) - {"image"}
    assert installed == {
        str(path.parent.relative_to(ROOT)) for path in [ROOT / "shared/pyproject.toml", *ROOT.glob("tools/*/pyproject.toml")]
    }
    assert re.search(r"^#   enroot import -o \S+\.sqsh dockerd://\S+$", text, re.MULTILINE)

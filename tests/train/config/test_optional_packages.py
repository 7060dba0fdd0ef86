"""Packages are found where pip can have put them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lt_train.config.optional_packages import FLASH_ATTENTION, QUACK, versions

ASK = """
from lt_train.config import optional_packages
print(optional_packages.QUACK.missing(), optional_packages.FLASH_ATTENTION.missing())
import cutlass
print(cutlass.__file__)
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """What `pip install --target` makes of the flash extra: a .pth file, which Python does not read there."""
    for module in ("quack/__init__.py", "flash_attn/cute/__init__.py", "nvidia_cutlass_dsl/dsl_packages/cutlass/__init__.py"):
        (tmp_path / module).parent.mkdir(parents=True)
        (tmp_path / module).write_text("")
    (tmp_path / "nvidia_cutlass_dsl_packages.pth").write_text("import nvidia_cutlass_dsl\n")
    return tmp_path


def test_cutlass_is_found_where_no_pth_file_is_read(target: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["None None", str(target / "nvidia_cutlass_dsl/dsl_packages/cutlass/__init__.py")], (
        done.stderr
    )


def test_without_cutlass_both_packages_are_incomplete(target: Path) -> None:
    (target / "nvidia_cutlass_dsl").rename(target / "elsewhere")
    environment = os.environ | {"PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)
    assert done.stdout == "cutlass cutlass\n"


def test_messages_name_the_version() -> None:
    assert versions()["torch"]
    assert str(FLASH_ATTENTION).startswith("flash-attn-4") and str(QUACK).startswith("quack-kernels")

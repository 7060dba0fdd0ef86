"""Who installs without constraints.txt gets the newest versions: all extras together, and of those that break, none that was not
tried.

What is newer than constraints.txt otherwise is printed in the summary of the tests, to be tried: on 2026-11-24 the tests of
lt-train, lt-convert and lt-shared passed on Python 3.12 with torch 2.15.0, NumPy 2.5.5, megatron-core 0.19.2 and cattrs 26.2.1.
"""

from collections.abc import Callable
from pathlib import Path

import pinned_versions
import pytest
import resolution
from packaging.version import Version

# Private functions of these are called. The newest release that was tried, which the upper bound in the metadata lets in.
BOUNDED = {
    "megatron-core": {"3.11": "0.16", "3.12": "0.19", "3.13": "0.19"},
    "flash-attn-4": dict.fromkeys(resolution.PYTHONS, "4.0"),
    "quack-kernels": dict.fromkeys(resolution.PYTHONS, "0.6"),
    "nvidia-cutlass-dsl": dict.fromkeys(resolution.PYTHONS, "4.8"),
    "emerging-optimizers": {"3.12": "0.3", "3.13": "0.3"},
}


@pytest.mark.parametrize("python", resolution.PYTHONS)
def test_all_extras_resolve_to_what_was_tried(
    python: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    nothing = tmp_path / "constraints.txt"
    nothing.touch()
    projects = [each for each in resolution.every_requirement() if not each.endswith(".txt")]
    newest = {package.name: package.version for package in resolution.resolve(projects, python, constraints=nothing)}
    pinned = pinned_versions.of(python)
    for name, tried in BOUNDED.items():
        if python in tried:
            assert Version(newest[name]).release[:2] == Version(tried[python]).release[:2], name
    newer = [f"{name} {version}" for name, version in newest.items() if Version(version) > Version(pinned.get(name, version))]
    record_property("summary", f"Python {python}, newer than constraints.txt: {', '.join(newer) or 'nothing'}")

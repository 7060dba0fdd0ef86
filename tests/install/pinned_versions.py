"""The versions of constraints.txt. Apart from resolution.py, which `nox -s lock` runs where nothing but uv is installed."""

import resolution
from packaging.requirements import Requirement


def of(python: str) -> dict[str, str]:
    """The version of every package that constraints.txt gives to `python`."""
    pins = {}
    for line in resolution.CONSTRAINTS.read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if not requirement.marker or requirement.marker.evaluate({"python_version": python}):
                pins[requirement.name] = str(requirement.specifier).removeprefix("==")
    return pins

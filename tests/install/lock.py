"""Write constraints.txt anew for every supported Python: `nox -s lock`, `nox -s lock -- --upgrade` for the newest versions.

Each Python is resolved for itself against the package index (resolution.py). Where they agree, a package has one line; where
they do not, a line for each of them. Versions that still fit are kept, but for those that `--upgrade` or `--upgrade-package NAME`
lets go. Without these options torch stays: it decides which triton and which CUDA fit, and figures were measured with it.
Whatever moves is to be tested before it is committed.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import resolution


def main(words: list[str]) -> None:
    options = parsed(words)
    header, _, present = resolution.CONSTRAINTS.read_text().partition("\n\n")
    pins = {python: pinned(present, python, options) for python in resolution.PYTHONS}
    resolution.CONSTRAINTS.write_text("\n".join([header, "", *lines(pins)]) + "\n")


def parsed(words: list[str]) -> list[str]:
    """`words` of the command line as options of uv."""
    parser = argparse.ArgumentParser(prog="nox -s lock --", allow_abbrev=False)
    parser.add_argument("--upgrade", action="store_true", help="take the newest version of every package")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME", help="of one package")
    given = parser.parse_args(words)
    return [*(["--upgrade"] if given.upgrade else []), *(f"--upgrade-package={name}" for name in given.upgrade_package)]


def pinned(present: str, python: str, options: list[str]) -> dict[str, str]:
    """The version of every package under `python`: those of `present`, the lines of constraints.txt, where they fit."""
    with tempfile.TemporaryDirectory() as directory:
        output, held = Path(directory) / "constraints.txt", Path(directory) / "held.txt"
        output.write_text(present)
        held.write_text("" if options else "".join(re.findall(r"^torch==.*", present, re.MULTILINE)))
        resolution.compile_requirements(resolution.every_requirement(), python, output, "-c", str(held), *options)
        found = output.read_text()
        output.write_text(present)
        resolution.compile_requirements(resolution.ALONE_REQUIREMENTS, python, output, "--no-deps", *options)
        return dict(re.findall(r"^([\w.-]+)==(\S+)", found + output.read_text(), re.MULTILINE))


def lines(pins: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The lines of constraints.txt for `pins`, the version of each package by Python, oldest Python first."""
    pythons = list(pins)
    for name in sorted(set().union(*pins.values())):
        versions = [pins[python].get(name) for python in pythons]
        if len(set(versions) - {None}) == 1:
            yield f"{name}=={next(filter(None, versions))}"
            continue
        for python, version in zip(pythons, versions, strict=True):
            if version:
                yield f'{name}=={version} ; python_version == "{python}"'


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except resolution.Unresolvable as error:
        sys.exit(str(error))

"""What the room says of upstream's functions is what docs/megatron-core.md lists, and what the installed release has."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
import upstream_signatures
from replacement_page import functions, listed, upstreams

FUNCTIONS = functions()


def test_the_page_and_the_room_name_the_same() -> None:
    room = {
        file: {upstream.qualified(name) for upstream in records for name in (*upstream.signatures, *upstream.values)}
        for file, records in upstreams().items()
    }
    assert listed() == room


@pytest.fixture(scope="module")
def installed() -> dict[str, str | None]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, upstream_signatures.__file__]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_installed_release_has_the_parameters_that_were_read(name: str, installed: dict[str, str | None]) -> None:
    """Else a release has other parameters: read the function again, and what the replacement makes of them."""
    file, upstream, recorded = FUNCTIONS[name]
    version = metadata.version(upstream.package).partition("+")[0]
    if not isinstance(recorded, str | None):
        recorded = recorded.get(version if version in upstream.versions else upstream.versions[-1], upstream_signatures.ABSENT)
    assert installed[name] == recorded, f"{upstream.package} {version}: see lt_train/{file}"


def test_values_take_no_arguments(installed: dict[str, str | None]) -> None:
    values = {name for names in listed().values() for name in names} - set(FUNCTIONS)
    assert len(values) > 10
    assert {installed[name] for name in values} == {upstream_signatures.VALUE, upstream_signatures.ABSENT}

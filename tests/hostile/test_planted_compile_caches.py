"""A stranger has made the directories where compilers look for machine code."""

import json
import os
import re
import subprocess
from pathlib import Path

import nursery
import pytest
from stranger import Stranger

from lt_train.kernels.compile_caches import IF_CHOSEN, OF_THE_MACHINE, OF_THE_USER

SCRIPT = """
import json, os, stat, sys
from lt_train.kernels import compile_caches
compile_caches.use_private_directories()
paths = {name: os.environ[name] for name in (*compile_caches.OF_THE_MACHINE, *compile_caches.OF_THE_USER)}
print(json.dumps({name: [path, os.path.isdir(os.path.dirname(path))] for name, path in paths.items()}))
"""
NOT_LISTED = """
import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""
WITHOUT_LOCKS = """
import fcntl
def flock(file, how):
    raise OSError(38, "Function not implemented")
fcntl.flock = flock
"""
VARIABLES = [*OF_THE_MACHINE, *OF_THE_USER]


def directories(cwd: Path, program: str = SCRIPT, **variables: str) -> tuple[dict[str, str], str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **variables}
    command = [nursery.light_python(), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=True)
    return {name: path for name, (path, _) in json.loads(done.stdout).items()}, done.stderr


def test_directories_of_this_user(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    found, err = directories(tmp_path, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path / "tmp"))
    assert err == ""
    assert found["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / f"tmp/lt-train-{os.geteuid()}/inductor")
    assert found["QUACK_CACHE_DIR"] == str(tmp_path / "home/.cache/lt-train/quack")
    assert all(os.stat(path).st_mode & 0o777 == 0o700 for path in found.values())


def test_a_home_without_locks_is_not_used(tmp_path: Path) -> None:
    """flash-attn-4 and quack would wait for a lock for each kernel, and fail."""
    (tmp_path / "tmp").mkdir()
    found, err = directories(tmp_path, WITHOUT_LOCKS + SCRIPT, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path / "tmp"))
    assert err == ""
    assert found["QUACK_CACHE_DIR"] == str(tmp_path / f"tmp/lt-train-{os.geteuid()}/quack")


def test_a_cache_directory_that_cannot_be_is_not_used(tmp_path: Path) -> None:
    """Nor does it end the run, as when HOME is another user's."""
    found, _ = directories(tmp_path, XDG_CACHE_HOME=str(tmp_path / ("x" * 300)), HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert found["QUACK_CACHE_DIR"] == str(tmp_path / f"lt-train-{os.geteuid()}/quack")


@pytest.mark.parametrize(("chosen", "kept"), [({}, "1"), ({"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"}, "0")])
def test_flash_attention_keeps_its_machine_code_unless_told_otherwise(chosen: dict[str, str], kept: str, tmp_path: Path) -> None:
    program = SCRIPT + "\nprint(os.environ['FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED'], file=sys.stderr)"
    _, err = directories(tmp_path, program, HOME=str(tmp_path), TMPDIR=str(tmp_path), **chosen)
    assert err == f"{kept}\n"


@pytest.mark.parametrize("base", ["TMPDIR", "XDG_CACHE_HOME"])
def test_a_planted_directory_is_not_used(base: str, stranger: Stranger, tmp_path: Path) -> None:
    uid = os.geteuid()
    stranger.run(f"mkdir -m 777 -p lt-train-{uid}/inductor lt-train/quack lt-train/triton; touch lt-train/quack/kernel.so")
    variables = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), base: str(stranger.shared)}
    found, err = directories(tmp_path, **variables)
    assert "belongs to another user" in err
    names = OF_THE_MACHINE if base == "TMPDIR" else OF_THE_USER
    for name, path in found.items():
        assert not path.startswith(f"{stranger.shared}/lt-train/")
        assert not path.startswith(f"{stranger.shared}/lt-train-{uid}/")
        assert ("lt-train-code-" in path) == (name in names)


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_directory_that_the_user_chose_is_used_if_nobody_else_can_write_there(variable: str, tmp_path: Path) -> None:
    mine, anyones = tmp_path / "mine", tmp_path / "anyones"
    mine.mkdir()
    anyones.mkdir()
    anyones.chmod(0o777)
    others = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    assert directories(tmp_path, **others, **{variable: str(mine)})[0][variable] == str(mine)
    for chosen in (str(anyones), "relative", "./~/.cache"):
        found, err = directories(tmp_path, **others, **{variable: chosen})
        assert "lt-train-code-" in found[variable]
        assert f"{chosen.removeprefix('./')}: not used as a cache" in err
    assert not (tmp_path / "relative").exists()


def test_a_user_without_a_home(tmp_path: Path) -> None:
    """HOME is not set, and a container's user has no entry in the list of users: ~ stays as it is, a name like any other."""
    found, err = directories(tmp_path, program=NOT_LISTED + SCRIPT, TMPDIR=str(tmp_path))
    for variable, name in OF_THE_USER.items():
        assert re.fullmatch(f"{tmp_path}/lt-train-code-[^/]+/{name}", found[variable])
        assert f"~/.cache/lt-train/{name}" in err
    assert err.count("not used as a cache, it may hold code of others: it is relative to the current directory") == 1
    assert found["TORCHINDUCTOR_CACHE_DIR"] == f"{tmp_path}/lt-train-{os.geteuid()}/inductor"
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("variable", ["TRITON_CACHE_DIR", *IF_CHOSEN])
def test_a_directory_with_content_that_the_group_can_write_is_not_used(variable: str, tmp_path: Path) -> None:
    """Compilers make the directory of each kernel with the umask of the user, which may be 002."""
    chosen = tmp_path / "chosen"
    (chosen / "kernels").mkdir(parents=True)
    code = chosen / "kernels/code.so"
    code.write_bytes(b"harmless")
    variables = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), variable: str(chosen)}
    program = f"{SCRIPT}\nprint(os.environ['{variable}'], file=sys.stderr)"
    for path, mode in ((code, 0o664), (code, 0o646), (code.parent, 0o775)):
        before = path.stat().st_mode
        path.chmod(mode)
        _, err = directories(tmp_path, program, **variables)
        warning, used = err.splitlines()
        assert f"{chosen}: not used as a cache" in warning
        assert f"{path} can be written to by others" in warning
        assert "lt-train-code-" in used
        # Nobody else gets there.
        chosen.chmod(0o700)
        assert directories(tmp_path, program, **variables)[1] == f"{chosen}\n"
        chosen.chmod(0o755)
        path.chmod(before)
    assert directories(tmp_path, program, **variables)[1] == f"{chosen}\n"

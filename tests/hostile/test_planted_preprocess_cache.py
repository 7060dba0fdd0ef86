"""What lt-preprocess has compiled is kept as machine code, which it runs: it loads none that others could have written."""

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding
import nursery
import pytest
from stranger import STRANGER_UID, Stranger

# The shortest way to a compiled function.
COMPILED = """
from lt_preprocess.readers import utf8
from lt_preprocess.texts import Texts
print(list(map(int, utf8.invalid(Texts.from_list([b"a" * 100, b"a" * 50 + b"\\xff" + b"a" * 50])))))
"""
DIRECTORY = "from lt_preprocess.compiler.cache_directory import cache_directory; print(cache_directory())"


def object_code(entry: str, mark: Path) -> bytes:
    """An object file in which the kernel's entry point creates a file, and finds nothing."""
    binding = llvmlite.binding
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    name = os.fsencode(mark) + b"\0"
    characters = "".join(f"\\{byte:02x}" for byte in name)
    module = binding.parse_assembly(
        f"""
        @name = private constant [{len(name)} x i8] c"{characters}"
        declare i32 @creat(ptr, i32)
        define i32 @"{entry}"(ptr %words, ptr %results) {{
            call i32 @creat(ptr @name, i32 384)
            ret i32 0
        }}
        """
    )
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(reloc="pic", codemodel="large")
    return bytes(machine.emit_object(module))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as a first run fills it, in a directory like /tmp."""
    base = tmp_path_factory.mktemp("filled")
    base.chmod(0o1777)
    done = compiled(base, {"NUMBA_CACHE_DIR": str(base), "HOME": str(base / "home")})
    assert list((base / "lt-preprocess").rglob("*.o")), done.stderr
    assert "not used" not in done.stderr
    return base


@pytest.fixture
def home(filled: Path, tmp_path: Path) -> Path:
    """With a cache that can be trusted, so that nothing has to be compiled where another cache is not used."""
    (tmp_path / "home/.cache").mkdir(parents=True)
    subprocess.run(["cp", "-r", filled / "lt-preprocess", tmp_path / "home/.cache"], check=True)
    return tmp_path / "home"


def compiled(
    directory: Path, environment: dict[str, str], *prefix: str, script: str = COMPILED, expected: str | None = "[1]\n"
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
    # A copy of a process stays with its user.
    command = [*prefix, sys.executable if "setpriv" in prefix else nursery.light_python(), "-c", script]
    done = subprocess.run(
        command, cwd=directory, env=inherited | environment, capture_output=True, text=True, timeout=480, check=False
    )
    assert done.returncode == 0 and expected in (None, done.stdout), done.stderr
    return done


def plant(filled: Path, base: Path, mark: Path) -> Path:
    """Copy the cache, with other code and its checksum; returns the directory of this version."""
    subprocess.run(["cp", "-r", filled / "lt-preprocess", base], check=True)
    for path in base.rglob("*.o"):
        code = object_code(path.stem, mark)
        path.write_bytes(code + zlib.crc32(code).to_bytes(4, "little"))
    [directory] = (base / "lt-preprocess").iterdir()
    return directory


def give_away(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, STRANGER_UID, STRANGER_UID)


def test_planted_code_does_run(filled: Path, tmp_path: Path, mark: Path) -> None:
    """Where only this user could have planted it. The tests below are about such files."""
    base = tmp_path / "base"
    base.mkdir()
    plant(filled, base, mark)
    compiled(tmp_path, {"NUMBA_CACHE_DIR": str(base)}, expected="[]\n")
    assert mark.exists()


def of_another(base: Path, directory: Path) -> None:
    give_away(base)


def writable(mode: int) -> Callable[[Path, Path], None]:
    def make_writable(base: Path, directory: Path) -> None:
        directory.chmod(mode)

    return make_writable


def base_writable(base: Path, directory: Path) -> None:
    base.chmod(0o777)


def planted_above(base: Path, directory: Path) -> None:
    """In a directory like /tmp, the stranger was the first to make this one."""
    base.chmod(0o1777)
    give_away(base / "lt-preprocess")


def planted_version(base: Path, directory: Path) -> None:
    (base / "lt-preprocess").chmod(0o1777)
    give_away(directory)


def planted_file(base: Path, directory: Path) -> None:
    directory.chmod(0o1777)
    for path in directory.rglob("*.o"):
        os.chown(path, STRANGER_UID, STRANGER_UID)


def once_planted_file(base: Path, directory: Path) -> None:
    """From when the directory was open."""
    for path in directory.rglob("*.o"):
        os.chown(path, STRANGER_UID, STRANGER_UID)


def linked_version(base: Path, directory: Path) -> None:
    his = base / "his"
    directory.rename(his)
    give_away(his)
    directory.symlink_to(his)


def linked_name(base: Path, directory: Path) -> None:
    base.chmod(0o1777)
    (base / "lt-preprocess").rename(base / "his")
    (base / "lt-preprocess").symlink_to("his")
    os.chown(base / "lt-preprocess", STRANGER_UID, STRANGER_UID, follow_symlinks=False)


ATTACKS = [
    of_another,
    writable(0o775),
    writable(0o777),
    writable(0o1777),
    base_writable,
    planted_above,
    planted_version,
    planted_file,
    once_planted_file,
    linked_version,
    linked_name,
]


# The way to the directory makes no difference to most attacks.
@pytest.mark.parametrize(
    ("variable", "attack"),
    [
        *(("NUMBA_CACHE_DIR", attack) for attack in ATTACKS),
        *(("XDG_CACHE_HOME", attack) for attack in (of_another, planted_above)),
        ("HOME", planted_above),
    ],
)
def test_nothing_that_others_could_write_is_loaded(
    filled: Path, stranger: Stranger, home: Path, tmp_path: Path, mark: Path, attack: Callable[[Path, Path], None], variable: str
) -> None:
    base = stranger.shared / ("home/.cache" if variable == "HOME" else "cache")
    base.mkdir(parents=True)
    directory = plant(filled, base, mark)
    attack(base, directory)
    value = base.parent if variable == "HOME" else base
    done = compiled(tmp_path, {"HOME": str(home)} | {variable: str(value)})
    assert not mark.exists()
    assert done.stderr.count("not used as a cache, it may hold code of others") == 1


@pytest.mark.parametrize("relative", ["NUMBA_CACHE_DIR=cache", "NUMBA_CACHE_DIR=./cache", "XDG_CACHE_HOME=cache", "nowhere"])
def test_nothing_relative_is_loaded(filled: Path, stranger: Stranger, home: Path, relative: str) -> None:
    """Without HOME and without an entry in the list of users, `~` stays `~`: a directory that anyone can make."""
    stranger.shared.chmod(0o755)
    mark = stranger.shared / "executed"
    for name in ("cache", "~/.cache"):
        (stranger.shared / name).mkdir(parents=True)
        plant(filled, stranger.shared / name, mark)
    if relative == "nowhere":
        # All is his own, so that nothing but the path can be the reason.
        for each in (stranger.shared, *stranger.shared.rglob("*")):
            os.chown(each, 54321, 54321)
        compiled(stranger.shared, {}, "setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
    else:
        variable, _, value = relative.partition("=")
        done = compiled(stranger.shared, {variable: value, "HOME": str(home)})
        assert done.stderr.count("which is relative: not used as a cache") == 1
    assert not mark.exists()


def test_what_is_made_is_private(tmp_path: Path) -> None:
    """Whatever the umask is, and whatever modes an earlier version has left."""
    base = tmp_path / "a/b"
    (base / "lt-preprocess").mkdir(parents=True)
    (base / "lt-preprocess").chmod(0o775)
    with_umask = ("sh", "-c", 'umask 0; exec "$@"', "sh")
    environment = {"NUMBA_CACHE_DIR": str(base), "HOME": str(tmp_path)}
    compiled(tmp_path, environment, *with_umask, script=DIRECTORY, expected=None)
    assert (base / "lt-preprocess").stat().st_mode & 0o777 == 0o755
    [directory] = (base / "lt-preprocess").iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "c/d")
    compiled(tmp_path, environment, *with_umask, script=DIRECTORY, expected=None)
    assert (tmp_path / "c").stat().st_mode & 0o777 == (tmp_path / "c/d/lt-preprocess").stat().st_mode & 0o777 == 0o700

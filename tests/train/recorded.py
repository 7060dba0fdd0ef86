"""What bash itself makes of a script: it is run with programs that record their words, and with no others.

The environment is empty and PATH has the recorders alone, so a script can start nothing else.
"""

import os
import shutil
import subprocess
from pathlib import Path

BASH = shutil.which("bash")
RECORDER = '#!{bash}\nprintf "%s\\0" "${{0##*/}}" "$@" >> "{record}"\nprintf "\\n\\0" >> "{record}"\n'
# It starts what it is given, as srun does on each node.
STARTER = '#!{bash}\nwhile (( $# )); do case $1 in bash|python*|torchrun) exec "$@";; esac; shift; done\n'
PRINTER = '#!{bash}\nwhile IFS= read -r line; do printf "%s\\n" "$line"; done\n'


def recorded(text: str, place: Path, **variables: str) -> list[list[str]]:
    """The words of each program that the script starts, its name first."""
    programs, record = place / "programs", place / "record"
    programs.mkdir(exist_ok=True)
    record.write_bytes(b"")
    stand_ins = {"python": RECORDER, "torchrun": RECORDER, "srun": STARTER, "cat": PRINTER}
    for name, source in stand_ins.items():
        (programs / name).write_text(source.format(bash=BASH, record=record))
        (programs / name).chmod(0o755)
    if not (programs / "bash").exists():
        os.symlink(str(BASH), programs / "bash")
    environment = {"PATH": str(programs), **variables}
    subprocess.run([str(BASH), "-c", text], env=environment, cwd=place, capture_output=True, timeout=30, check=False)
    entries = record.read_bytes().decode().split("\n\0")
    return [entry.removesuffix("\0").split("\0") for entry in entries if entry]


def printed(text: str) -> str:
    """What a script of builtins prints."""
    done = subprocess.run(
        [str(BASH), "-c", text], env={"PATH": "/nowhere"}, capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout

"""Completion in the shells themselves: the line after the tools' completion script and the shell's own keys have worked on it.

bash and zsh run on a terminal and insert every completion of the last word; fish has a command that lists them.
"""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BINARIES = Path(sys.executable).parent
TOOLS = ("lt-preprocess", "lt-train", "lt-convert", "lt-monitor")
# The files of the directory are run1 and run2.log. The slash that some shells add to a directory is left out.
LINES = {
    "lt-train --model llama3.1-": {"llama3.1-8b", "llama3.1-70b", "llama3.1-405b"},
    "lt-train --model ru": {"run1", "run2.log"},
    "lt-train --model=llama3.1-4": {"--model=llama3.1-405b"},
    "lt-train --model=tiny --position-embedding-type=r": {"--position-embedding-type=rope"},
    "lt-train --load ru": {"run1", "run2.log"},
    "lt-train pl": {"plan"},
    "lt-train help parallelis": {"parallelism"},
    "lt-train --position-embedding-type r": {"rope"},
    "lt-train render slurm --instance-type p6": {"p6-b200.48xlarge"},
    "lt-train render k8s --instance-type ml.p5": {"ml.p5.48xlarge", "ml.p5e.48xlarge", "ml.p5en.48xlarge"},
    "lt-train render slurm --save x --model llama3.1-4": {"llama3.1-405b"},
    "lt-convert ver": {"verify"},
    "lt-convert ru": {"run1", "run2.log"},
    "lt-convert --to megatron-h": {"megatron-hybrid"},
    "lt-convert run1 -o ru": {"run1", "run2.log"},
    "lt-preprocess mer": {"merge"},
    "lt-monitor summarize ru": {"run1", "run2.log"},
    "lt-monitor plot run2.log --metric g": {"grad_norm"},
    "lt-monitor plot --model llama3.1-4": {"llama3.1-405b"},
}
# Escape and * insert all completions of a word, Escape and p write the line to a file and clear it.
BASH = """
PS1='ready> '
bind 'set bell-style none' '"\\e*": insert-completions'
write_line() { printf '%s\\n' "$READLINE_LINE" >> lines; READLINE_LINE=; READLINE_POINT=0; }
bind -x '"\\ep": write_line'
"""
ZSH = """
PROMPT='ready> '
autoload -Uz compinit && compinit -u -d zcompdump
zstyle ':completion:all-matches:*' completer _all_matches _complete
zstyle ':completion:all-matches:*' insert yes
zstyle ':completion:all-matches:*' old-matches false
zle -C all-matches complete-word _generic
bindkey '\\e*' all-matches
write_line() { print -r -- "$BUFFER" >> lines; BUFFER= }
zle -N write_line && bindkey '\\ep' write_line
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "run1").mkdir()
    (folder / "run2.log").touch()
    return folder


def environment(directory: Path) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("LT_", "_LT_"))}
    return variables | {
        "HOME": str(directory),
        "PATH": f"{BINARIES}:{os.environ['PATH']}",
        "TERM": "dumb",
        "ZDOTDIR": str(directory),
    }


def scripts(shell: str) -> str:
    """What the README lets a user add to the shell's start-up file."""
    return "\n".join(f'eval "$(_{tool.replace("-", "_").upper()}_COMPLETE={shell}_source {tool})"' for tool in TOOLS)


def names(completions: str) -> set[str]:
    return {name.removesuffix("/") for name in completions.split()}


def completed_on_a_terminal(command: list[str], directory: Path) -> dict[str, set[str]]:
    """Type every line of LINES and the keys that complete it; return what became of their last words."""
    main, terminal = pty.openpty()
    with (
        os.fdopen(main, "rb+", buffering=0) as keyboard,
        subprocess.Popen(
            command,
            cwd=directory,
            env=environment(directory),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        ),
    ):
        os.close(terminal)
        shown = b""
        while b"ready> " not in shown:
            shown += keyboard.read(1 << 16)
        keyboard.write("".join(f"{line}\x1b*\x1bp" for line in LINES).encode() + b"exit\r")
        try:
            while keyboard.read(1 << 16):
                pass
        except OSError:
            # Linux reports the end of a terminal as an error.
            pass
    typed = (directory / "lines").read_text().splitlines()
    (directory / "lines").unlink()
    words = {line: line.rpartition(" ")[0] for line in LINES}
    return {line: names(text.removeprefix(words[line])) for line, text in zip(LINES, typed, strict=True)}


def test_bash(directory: Path) -> None:
    (directory / "bashrc").write_text(f"{scripts('bash')}\n{BASH}")
    command = ["bash", "--noprofile", "--rcfile", "bashrc", "-i"]
    assert completed_on_a_terminal(command, directory) == LINES


def test_zsh(directory: Path) -> None:
    if not shutil.which("zsh"):
        pytest.skip("needs zsh: apt-get install zsh")
    (directory / ".zshrc").write_text(f"{ZSH}\n{scripts('zsh')}")
    assert completed_on_a_terminal(["zsh", "-o", "no_global_rcs", "-i"], directory) == LINES


def test_fish(directory: Path) -> None:
    if not shutil.which("fish"):
        pytest.skip("needs fish: apt-get install fish")
    sources = "\n".join(f"env _{tool.replace('-', '_').upper()}_COMPLETE=fish_source {tool} | source" for tool in TOOLS)
    calls = "\n".join(f"complete --do-complete '{line}' | string split --fields 1 \\t; echo ---" for line in LINES)
    command = ["fish", "--no-config", "-c", f"{sources}\n{calls}"]
    done = subprocess.run(command, cwd=directory, env=environment(directory), capture_output=True, text=True, check=True)
    completions = [names(part) for part in done.stdout.split("---\n")[:-1]]
    assert dict(zip(LINES, completions, strict=True)) == LINES

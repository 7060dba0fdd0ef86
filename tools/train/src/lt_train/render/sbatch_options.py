"""The #SBATCH lines that a user asks for, and the shell that gives the nodes their packages.

sbatch parses a #SBATCH line itself (`_get_argument` in Slurm's src/sbatch/opt.c): quotes group words, a backslash escapes the
next character inside quotes too, and an unquoted # begins a comment.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence

from lt_shared.console import UsageError, note
from lt_train.render.job_spec import Job, check_value
from lt_train.render.shell import TASK_NUMBER

ARRAY = re.compile(r"(\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*)(?:%(\d+))?")
OPTION = re.compile(r"(?:--)?([a-z][a-z0-9-]*)(?:[= ](.*))?", re.DOTALL)
PLAIN = re.compile(r"[\w@%+=:,./\[\]()&|*-]+", re.ASCII)
# Options that the job file sets itself, and the option of lt-train render that sets each.
OWN = {
    name: f"--{name}"
    for name in ("nodes", "job-name", "time", "gpus-per-node", "partition", "account", "qos", "reservation", "array")
}
# The job file depends on their values: a task starts the ranks of a node, and at the signal the run saves.
FIXED = ("ntasks", "ntasks-per-node", "signal", "wrap", "dependency", "open-mode", "requeue", "no-requeue", "wait-all-nodes")

# The functions of environment modules may use unset variables.
MODULES = """\
set +u
if ! command -v module > /dev/null; then
  for file in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash; do
    # shellcheck disable=SC1090
    if [ -e "$file" ]; then . "$file"; break; fi
  done
fi
module load {modules} || {{ echo {failed} >&2; exit 78; }}
set -u"""
VENV = """\
if [ ! -e {activate} ]; then
  echo {missing} >&2
  exit 78
fi
set +u
# shellcheck disable=SC1091
. {activate}
set -u"""
CONDA = """\
conda=${{CONDA_EXE:-conda}}
if ! command -v "$conda" > /dev/null; then
  echo {missing} >&2
  exit 78
fi
set +u
eval "$("$conda" shell.bash hook)"
conda activate {environment} || {{ echo {failed} >&2; exit 78; }}
set -u"""
CHECK = """\
tools=({tools})
for tool in "${{tools[@]}}"; do
  if ! command -v "$tool" > /dev/null; then
    echo "no $tool "{missing} >&2
    exit 78
  fi
done"""


@dataclasses.dataclass(frozen=True)
class NodeEnvironment:
    """What gives the nodes their packages: environment modules, then a virtual environment or a conda environment."""

    modules: tuple[str, ...] = ()
    venv: str | None = None
    conda: str | None = None

    def check(self, job: Job) -> None:
        """Raise UsageError for two environments, or for an environment beside a container."""
        if self.venv and self.conda:
            raise UsageError(f"--venv {self.venv} and --conda {self.conda}: two environments", "drop one of them")
        if job.image and (self.venv or self.conda):
            name = f"--venv {self.venv}" if self.venv else f"--conda {self.conda}"
            raise UsageError(f"--image and {name}: a container has its own packages", "drop one of them")
        for option, value in (("--venv", self.venv), ("--conda", self.conda), *(("--module", name) for name in self.modules)):
            if value is not None:
                check_value(value, option)
                if not value or value.startswith("-"):
                    raise UsageError(f"{option} {value!r}", f"{option} NAME")

    def shell(self, job: Job, tools: Sequence[str]) -> str:
        """Write the lines that load the environment on the first node and look for `tools`. srun passes it on to all nodes."""
        blocks = []
        if self.modules:
            names = " ".join(self.modules)
            failed = shlex.quote(f"cannot load the modules {names}: see module avail")
            blocks.append(MODULES.format(modules=" ".join(map(shlex.quote, self.modules)), failed=failed))
        if self.venv:
            activate = shlex.quote(f"{self.venv.rstrip('/')}/bin/activate")
            missing = shlex.quote(f"{self.venv}: no virtual environment on this node; every node must see it under this path")
            blocks.append(VENV.format(activate=activate, missing=missing))
        if self.conda:
            missing = shlex.quote("no conda on this node: add --module, or set CONDA_EXE when the job is submitted")
            failed = shlex.quote(f"no conda environment {self.conda}: see conda env list")
            blocks.append(CONDA.format(environment=shlex.quote(self.conda), missing=missing, failed=failed))
        if blocks:
            # After sbatch --export=NONE, srun would pass nothing on.
            blocks.append("unset SLURM_EXPORT_ENV")
        if job.image is None:
            blocks.append(CHECK.format(tools=" ".join(tools), missing=shlex.quote(self._advice())))
        source = self._described(job)
        return "\n".join([f"# The packages of all nodes: {source}.", *blocks])

    def _described(self, job: Job) -> str:
        if job.image is not None:
            return "those in the container" + (f", after module load {' '.join(self.modules)}" if self.modules else "")
        names = [f"module load {' '.join(self.modules)}"] if self.modules else []
        names += [f"the virtual environment {self.venv}"] if self.venv else []
        names += [f"the conda environment {self.conda}"] if self.conda else []
        return ", then ".join(names) or "those on PATH where the job is submitted, which sbatch and srun pass on"

    def _advice(self) -> str:
        if self.venv or self.conda or self.modules:
            return "in this environment: install it there with pip"
        return "on PATH: activate its environment before sbatch, or render with --venv, --conda, --module or --image"


def directives(named: Mapping[str, str | None], options: Sequence[str], is_array_shared: bool) -> dict[str, str | None]:
    """Parse the options for sbatch: those of `named` that are set, and `options` as NAME, NAME=VALUE or --NAME=VALUE.

    If `is_array_shared`, all tasks of an array save to one directory, so they run one after another. Raises UsageError.
    """
    chosen: dict[str, str | None] = {name: value for name, value in named.items() if value is not None}
    if (array := chosen.get("array")) is not None:
        chosen["array"] = _array(array, is_array_shared)
    for text in options:
        match = OPTION.fullmatch(text)
        if not match:
            raise UsageError(f"--sbatch-option {text!r}: no long option of sbatch", "--sbatch-option constraint=h100")
        name, value = match[1], match[2]
        if name in OWN:
            raise UsageError(f"--sbatch-option {text}: the job file sets it", f"{OWN[name]} {value or ''}".strip())
        if name in FIXED:
            raise UsageError(f"--sbatch-option {text}: the job file needs its own {name} to save and to go on", "drop it")
        if name in chosen:
            raise UsageError(f"--sbatch-option {name}: given twice", "drop one of them")
        chosen[name] = value
    for name, value in chosen.items():
        if value is not None:
            option = f"--{name}" if name in named else f"--sbatch-option {name}"
            check_value(value, option)
            if not value:
                raise UsageError(f"{option}: an empty value", "drop it, or name one")
    return chosen


def _array(text: str, is_shared: bool) -> str:
    match = ARRAY.fullmatch(text)
    if not match:
        raise UsageError(f"--array {text!r}", "as of sbatch: 0-9, 1,3,5, 0-15:4, or 0-9%2 for two at a time")
    if not is_shared:
        return text
    if match[2] is None:
        note(
            f"--array {text}%1: all tasks have one --save, so they run one after another; {TASK_NUMBER} in --save gives one each"
        )
        return f"{text}%1"
    if int(match[2]) > 1:
        raise UsageError(
            f"--array {text}: {match[2]} tasks would write to one --save at a time",
            f"--array {match[1]}%1, or {TASK_NUMBER} in --save, which becomes the task's number",
        )
    return text


def line(name: str, value: object = None) -> str:
    """Write a #SBATCH line that sbatch reads as it was meant."""
    if value is None:
        return f"#SBATCH --{name}"
    text = str(value)
    if not PLAIN.fullmatch(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={text}"

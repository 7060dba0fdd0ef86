"""Pieces of shell that the job files for all schedulers share. All pieces pass shellcheck."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from lt_train.config.settings.parallelism import AUTO
from lt_train.render.job_spec import BATCHES, LAYOUT, OWN_LAYOUT, SIZES, Job, changes_preset

# shellcheck warns about a dollar sign in single quotes (SC2016); lt-train quotes it on purpose.
# The number of an array's task, as in the file names of sbatch.
TASK_NUMBER = "%a"
LITERAL = re.compile(r"'[^']*[$`][^']*'")


def script(*lines: str) -> str:
    """Join lines into a bash script that exits at the first failure and passes shellcheck."""
    text = "\n".join(["set -euo pipefail", *lines]) + "\n"
    return f"# shellcheck disable=SC2016\n{text}" if LITERAL.search(text) else text


def has_task_number(job: Job) -> bool:
    """Whether each task of the job's array has a SAVE of its own."""
    return TASK_NUMBER in job.save


def quote(job: Job, word: str) -> str:
    """Quote a word for bash. In an array of jobs, `%a` becomes the number of the task."""
    if not job.is_array or TASK_NUMBER not in word:
        return shlex.quote(word)
    return '"$SLURM_ARRAY_TASK_ID"'.join(_single_quoted(part) for part in word.split(TASK_NUMBER))


def _single_quoted(text: str) -> str:
    quoted = shlex.quote(text)
    return f"'{text}'" if text and quoted == text else quoted if text else ""


def array(name: str, words: Sequence[str], job: Job) -> str:
    """Write a bash array of `words` of the job, with one option and its values per line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        quoted = quote(job, word)
        # shellcheck takes a comma for a mistaken separator unless it is quoted.
        lines[-1].append(_single_quoted(word) if "," in word and quoted == word else quoted)
    return "\n".join([f"{name}=(", *(f"  {' '.join(line)}" for line in lines), ")"])


def training_words(job: Job) -> tuple[str, ...]:
    """Return lt-train's arguments. The manifest of lt-preprocess comes first, so that no list of datasets can absorb it."""
    return job.train if job.preprocess is None else (f"@{job.beside('data.manifest')}", *job.train)


def exports(variables: Mapping[str, str]) -> str:
    """Write exports of variables; a variable that is already set in the environment keeps its value."""
    return "\n".join(f'export {name}="${{{name}:-{value}}}"' for name, value in variables.items())


def sizes_from_environment(job: Job) -> str:
    """Write the lines that let NUM_LAYERS=48 and similar variables change the model and the batch when the job is submitted.

    A preset refuses new sizes, because its feed-forward size would not change with them.
    """
    lines = ["# Sizes from the environment, as in GLOBAL_BATCH_SIZE=1024 sbatch; they come before those above."]
    options = SIZES | BATCHES
    if job.options["model"]:
        options = BATCHES
        any_size = "".join(f"${{{name}:-}}" for name in SIZES)
        reason = shlex.quote(changes_preset(job.options["model"]))
        lines += [f'if [ -n "{any_size}" ]; then', f"  echo {reason} >&2", "  exit 78", "fi"]
    lines += [f'if [ -n "${{{name}:-}}" ]; then train+=({option} "${name}"); fi' for name, option in options.items()]
    if job.options["parallel"] == AUTO:
        any_layout = "".join(f"${{{name}:-}}" for name in LAYOUT)
        lines.append(f'if [ -n "{any_layout}" ]; then train+=({" ".join(OWN_LAYOUT)}); fi')
    return "\n".join(lines)


def pattern(codes: Iterable[int]) -> str:
    """Write the `case` pattern that matches these exit codes."""
    return " | ".join(str(int(code)) for code in sorted(codes))


def command(words: Sequence[str]) -> str:
    """Quote and join the words of a command line."""
    return " ".join(shlex.quote(word) for word in words)

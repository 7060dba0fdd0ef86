"""What a real sbatch makes of the options in a job file, and what the tasks of an array on two nodes find there."""

import re
from pathlib import Path
from typing import Any

RUN = ("--mock-data", "--model", "tiny", "--train-iters", "5")
# In a virtual environment that is on PATH of neither node: it writes down where it ran.
LT_TRAIN = """#!/bin/bash
echo "$(hostname) $VIRTUAL_ENV $*" >> {folder}/tasks
echo '{{"v":1,"kind":"end","count":1}}'
"""


def test_options_of_a_held_job(slurm: Any, tmp_path: Path) -> None:
    comment = """a "quoted" # comment \\ it's $HOME"""
    named = ("--partition", "test", "--account", "physics", "--job-name", "odd")
    options = (f"comment={comment}", "hold", "nice=7", "exclude=n2", "mem=500")
    words = (*named, *(word for option in options for word in ("--sbatch-option", option)), "--save", f"{tmp_path}/run", *RUN)
    script = slurm.run("lt-train", "render", "slurm", *words)
    job = slurm.run("sbatch", "--parsable", cwd=tmp_path, stdin=script)
    shown = slurm.run("scontrol", "show", "job", job)
    slurm.run("scancel", job)
    for part in ("Partition=test", "Account=physics", "JobName=odd", "ExcNodeList=n2", "Nice=7", "MinMemoryNode=500M"):
        assert re.search(rf"\b{part}\b", shown), shown
    assert f"Comment={comment} \n" in shown
    assert "Reason=JobHeldUser" in shown


def test_an_array_with_an_environment_on_each_node(slurm: Any, tmp_path: Path) -> None:
    venv = tmp_path / "my venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/activate").write_text(f'export VIRTUAL_ENV=there PATH="{venv}/bin:$PATH"\n')
    (venv / "bin/lt-train").write_text(LT_TRAIN.format(folder=tmp_path))
    (venv / "bin/lt-train").chmod(0o755)
    # Slurm itself would start both tasks' steps without the variables of the script.
    options = ("--nodes", "2", "--array", "3,5", "--venv", str(venv), "--sbatch-option", "export=NONE")
    script = slurm.run("lt-train", "render", "slurm", *options, "--save", f"{tmp_path}/my run %a", *RUN)
    job = slurm.run("sbatch", "--parsable", "-o", "log-%a", cwd=tmp_path, stdin=script)
    for task in ("3", "5"):
        slurm.finish(f"{job}_{task}", tmp_path / f"log-{task}")
    tasks = [f"n{node} there --save {tmp_path}/my run {task} {' '.join(RUN)}" for node in "12" for task in "35"]
    assert sorted((tmp_path / "tasks").read_text().splitlines()) == sorted(tasks)
    assert {path.name for path in tmp_path.glob("my run*")} == {"my run 3", "my run 5"}

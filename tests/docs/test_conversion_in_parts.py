"""The commands in the guide's section on several processes and nodes: each is run as its launcher would run it."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import nursery
import pytest
import yaml
from convert_models import content, run, write_model

GUIDE = Path(__file__).parents[2] / "docs/guides/conversion.md"


def section() -> str:
    return GUIDE.read_text().partition("## More than one process or node\n")[2].partition("\n## ")[0]


def block(language: str) -> str:
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", section(), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the sources of the guide, and the results of one process in `expected`."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI_", "OMPI_", "TORCHELASTIC"))]:
        monkeypatch.delenv(name)
    write_model(tmp_path / "Llama-3.2-1B", tokenizer=True)
    assert run("Llama-3.2-1B", "--to", "torchtitan", "-o", "run1", cwd=tmp_path).returncode == 0
    return tmp_path


def shell(command: str, place: Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{nursery.light_programs()}:{os.environ['PATH']}"} | (variables or {})
    return subprocess.run(["bash", "-c", command], cwd=place, env=environment, capture_output=True, text=True)


def of_one_process(place: Path, source: str, to: str, out: str) -> dict[str, bytes]:
    assert run(source, "--to", to, "-o", out, cwd=place).returncode == 0
    result = content(place / out)
    (place / out).rename(place / "one")
    return result


def test_two_processes(place: Path) -> None:
    expected = of_one_process(place, "Llama-3.2-1B", "megatron-dist", "llama")
    lines = re.findall(r"^    (.*)$", section(), re.MULTILINE)
    done = shell("\n".join(lines), place)
    assert done.stdout.count('"kind":"checkpoint"') == 1, done.stderr
    assert content(place / "llama") == expected


def test_srun(place: Path) -> None:
    expected = of_one_process(place, "run1", "hf", "run1-hf")
    [command] = re.findall(r"`srun (lt-convert [^`]*)`", section())
    for task in range(3):
        assert not (place / "run1-hf").exists()
        done = shell(command, place, {"SLURM_PROCID": str(task), "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3"})
        assert done.returncode == 0, done.stderr
    assert content(place / "run1-hf") == expected


def test_a_slurm_array(place: Path) -> None:
    expected = of_one_process(place, "run1", "hf", "run1-hf")
    script = block("bash")
    [(first, last)] = re.findall(r"--array=(\d+)-(\d+)", script)
    for task in reversed(range(int(first), int(last) + 1)):
        assert not (place / "run1-hf").exists()
        done = shell(script, place, {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
        assert done.returncode == 0, done.stderr
    assert content(place / "run1-hf") == expected
    state = run("inspect", "run1-hf", cwd=place)
    assert state.returncode == 0


def test_an_indexed_job(place: Path) -> None:
    expected = of_one_process(place, "run1", "hf", "run1-hf")
    job: dict[str, Any] = yaml.safe_load(block("yaml"))
    assert (job["kind"], job["apiVersion"], job["spec"]["completionMode"]) == ("Job", "batch/v1", "Indexed")
    [container] = job["spec"]["template"]["spec"]["containers"]
    for index in range(job["spec"]["completions"]):
        done = subprocess.run(
            [nursery.light_python(), "-m", "lt_convert", *container["command"][1:]],
            cwd=place,
            env=os.environ | {"JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert content(place / "run1-hf") == expected


def test_the_parts_that_are_missing_and_a_refused_part(place: Path) -> None:
    command = re.findall(r"`srun (lt-convert [^`]*)`", section())[0].replace("auto", "0/2")
    assert shell(command, place).returncode == 0
    [inspect] = re.findall(r"`(lt-convert inspect [^`]*)`", section())
    done = shell(inspect, place)
    assert "part 1 of 2 (never begun)" in done.stderr
    for other in (command.replace("0/2", "1/3"), command.replace(" --shard 0/2", "")):
        assert shell(other, place).returncode == 73

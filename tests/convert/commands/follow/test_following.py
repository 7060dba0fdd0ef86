"""Following a run: each complete checkpoint once and in order, whatever fails, is killed, deleted or written meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import s3_server
from safetensors.torch import load_file, save_file

import lt_convert
from lt_convert.commands.follow import following, state
from lt_convert.commands.follow.following import FollowRequest
from lt_shared.console import BadData, NoInput, TryAgain, UsageError
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RECORD, TRACKER
from lt_shared.contracts.manifest import Checkpoint

LIMIT_SECONDS = 120


@pytest.fixture(scope="module")
def checkpoint(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(lt_convert.convert(models["grouped"], tmp_path_factory.mktemp("made") / "run", "megatron-dist").path)


class Run:
    """A run of Megatron-LM, which has no run.json, that is trained step by step."""

    def __init__(self, directory: Path, checkpoint: Path):
        self.directory, self.checkpoint = directory, checkpoint
        directory.mkdir()

    def write(self, iteration: int) -> Path:
        """Write a checkpoint, and the tracker not yet."""
        path = checkpoint_layout.iteration_directory(self.directory, iteration)
        shutil.copytree(
            self.checkpoint, path, ignore=shutil.ignore_patterns(RECORD), copy_function=shutil.copyfile, dirs_exist_ok=True
        )
        return path

    def save(self, *iterations: int) -> None:
        for iteration in iterations:
            self.write(iteration)
            (self.directory / TRACKER).write_text(str(iteration))


@pytest.fixture
def run(checkpoint: Path, tmp_path: Path) -> Run:
    return Run(tmp_path / "run", checkpoint)


@pytest.fixture
def once(run: Run, tmp_path: Path) -> Callable[..., tuple[bool, list[str]]]:
    """Make a pass; whether it went well, and the names of the checkpoints that it converted."""

    def make_pass(**options: Any) -> tuple[bool, list[str]]:
        checkpoints: list[Checkpoint] = []
        request = FollowRequest(str(run.directory), "hf", str(tmp_path / "followed"), **options)
        went_well = following.follow(request, None, checkpoints.append)
        return went_well, [Path(one.path).name for one in checkpoints]

    return make_pass


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_each_once_and_in_order(run: Run, once: Any, tmp_path: Path) -> None:
    run.directory.rmdir()
    with pytest.raises(NoInput):
        once()
    run.directory.mkdir()
    assert once() == (True, [])
    run.save(20, 10, 100)
    run.write(200)
    command = f"echo {{}} >> {tmp_path}/log"
    assert once(each=command) == (True, ["iter_0000010", "iter_0000020", "iter_0000100"])
    assert once(each=command) == (True, [])
    run.save(200)
    assert once(each=command) == (True, ["iter_0000200"])
    assert lines(tmp_path / "log") == [f"{tmp_path}/followed/iter_{number:07d}" for number in (10, 20, 100, 200)]
    assert lt_convert.verify(tmp_path / "followed" / "iter_0000200", run.directory)["same"]


def test_nothing_but_the_model_looks_like_one(run: Run, once: Any, tmp_path: Path) -> None:
    """vLLM and others load each file of these endings."""
    run.save(10)
    once()
    names = [path.name for path in (tmp_path / "followed" / "iter_0000010").rglob("*")]
    assert "lt-convert.padding" in names
    assert [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".pth"))] == ["model.safetensors"]


def test_a_command_that_fails_is_run_again_in_the_next_pass(run: Run, once: Any, tmp_path: Path) -> None:
    run.save(10, 20)
    command = f"echo {{}} >> {tmp_path}/log; case {{}} in *10) test -e {tmp_path}/ready;; esac"
    for attempt in (1, 2):
        assert once(each=command)[0] is False
        saved = json.loads((tmp_path / "followed" / state.STATE).read_text())["checkpoints"]
        assert [saved["iter_0000010"][key] for key in ("attempts", "exit_code", "succeeded")] == [attempt, 1, False]
        assert [saved["iter_0000020"][key] for key in ("attempts", "exit_code", "succeeded")] == [1, 0, True]
    (tmp_path / "ready").touch()
    assert once(each=command) == (True, [])
    assert once(each=command) == (True, [])
    assert [line[-2:] for line in lines(tmp_path / "log")] == ["10", "20", "10", "10"]


def test_a_command_that_a_signal_ends_has_failed(run: Run, once: Any, tmp_path: Path) -> None:
    run.save(10)
    assert once(each=": {}; kill -9 $$") == (False, ["iter_0000010"])
    assert json.loads((tmp_path / "followed" / state.STATE).read_text())["checkpoints"]["iter_0000010"]["exit_code"] == 137


@pytest.mark.parametrize("name", ["it's here", 'a "b" $HOME `date`', "tab\there;ls", "ünïcode *"])
def test_the_path_is_quoted(name: str, checkpoint: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", checkpoint)
    run.save(10)
    request = FollowRequest(str(run.directory), "hf", str(tmp_path / name), each="touch {}/done && mkdir -p {}/eval")
    assert following.follow(request, None, lambda _: None)
    assert (tmp_path / name / "iter_0000010" / "done").is_file()


def test_only_the_newest_are_kept_with_what_the_command_wrote(run: Run, once: Any, tmp_path: Path) -> None:
    run.save(10, 20, 30)
    command = "mkdir {}/eval && echo 1 > {}/eval/score"
    assert once(each=command, keep_last=1)[0]
    left = {
        str(path.relative_to(tmp_path / "followed")) for path in (tmp_path / "followed").rglob("*.*") if path.suffix != ".lock"
    }
    assert {name for name in left if "model" in name or "config" in name} == {
        "iter_0000030/config.json", "iter_0000030/generation_config.json", "iter_0000030/model.safetensors"
    }  # fmt: skip
    assert len(list((tmp_path / "followed").glob("*/eval/score"))) == 3
    run.save(40)
    assert once(each=command, keep_last=1) == (True, ["iter_0000040"])
    assert len(list((tmp_path / "followed").glob("*/model.safetensors"))) == 1
    assert once(keep_last=1) == (True, [])


def test_without_a_command_nothing_is_left_of_what_is_not_kept(run: Run, once: Any, tmp_path: Path) -> None:
    run.save(10, 20, 30)
    assert once(keep_last=2)[0]
    assert sorted(path.name for path in (tmp_path / "followed").iterdir() if path.is_dir()) == ["iter_0000020", "iter_0000030"]
    assert once(keep_last=2) == (True, []), "what was deleted is not converted again"


def test_what_the_command_has_not_done_is_kept(run: Run, once: Any, tmp_path: Path) -> None:
    run.save(10, 20, 30)
    command = f": {{}}; test -e {tmp_path}/ready"
    assert not once(each=command, keep_last=1)[0]
    assert len(list((tmp_path / "followed").glob("*/model.safetensors"))) == 3
    (tmp_path / "ready").touch()
    assert once(each=command, keep_last=1) == (True, [])
    assert len(list((tmp_path / "followed").glob("*/model.safetensors"))) == 1


def test_one_that_cannot_be_converted_does_not_hold_up_the_others(
    run: Run, once: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save(10, 20)
    path = run.directory / "iter_0000010" / "common.pt"
    content = path.read_bytes()
    path.write_bytes(b"")
    assert once() == (False, ["iter_0000020"])
    assert "iter_0000010/common.pt" in capsys.readouterr().err
    path.write_bytes(content)
    assert once() == (True, ["iter_0000010"])


def test_a_damaged_checkpoint_is_told_once_nobody_touches_it(run: Run, once: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run.save(10, 20)
    damaged = run.directory / "iter_0000010"
    (damaged / ".metadata").unlink()
    assert once() == (True, ["iter_0000020"])
    os.utime(damaged, (0, 0))
    capsys.readouterr()
    assert once() == (False, [])
    assert "iter_0000010: is not complete, and older than iteration 20" in capsys.readouterr().err


def test_what_the_run_deletes_is_passed_over(run: Run, once: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save(10, 20)
    convert = following.conversion.convert

    def delete_first(request: Any) -> Any:
        shutil.rmtree(run.directory / "iter_0000010", ignore_errors=True)
        return convert(request)

    monkeypatch.setattr(following.conversion, "convert", delete_first)
    assert once() == (True, ["iter_0000020"])
    assert once() == (True, [])


def test_a_checkpoint_that_is_written_again_is_converted_again(run: Run, once: Any, tmp_path: Path) -> None:
    """As after a rollback: the run was continued from an older checkpoint, on other data."""
    run.save(10, 20)
    once(each="mkdir {}/eval")
    time.sleep(0.02)
    run.write(20)
    assert once(each="mkdir {}/eval") == (True, []), "the tracker is older than the files"
    (run.directory / TRACKER).write_text("20")
    assert once(each="mkdir {}/eval") == (True, ["iter_0000020"])
    assert once(each="mkdir {}/eval") == (True, [])
    assert sorted(path.name for path in (tmp_path / "followed").iterdir() if path.is_dir()) == [
        "iter_0000010", "iter_0000020", "iter_0000020.1"
    ]  # fmt: skip


def test_a_directory_follows_one_run(run: Run, once: Any, tmp_path: Path) -> None:
    run.save(10)
    once()
    with pytest.raises(UsageError, match="follows with dtype None, not bfloat16"):
        once(dtype="bfloat16")
    with pytest.raises(UsageError, match=r"has no \{\}"):
        once(each="lm_eval")
    with pytest.raises(UsageError, match="is the run, or holds it"):
        following.follow(FollowRequest(str(run.directory), "hf", str(tmp_path)), None, lambda _: None)
    with pytest.raises(UsageError, match="in the format megatron-dist already"):
        following.follow(FollowRequest(str(run.directory), "megatron-dist", str(tmp_path / "same")), None, lambda _: None)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"v": 2}', b'{"v": 1, "options": {}, "checkpoints": {"../x": {"iteration": 1}}}',
                b'{"v": 1, "options": {}, "checkpoints": {"step-1": {"iteration": "1"}}}']
)  # fmt: skip
def test_a_state_that_is_none(content: bytes, run: Run, once: Any, tmp_path: Path) -> None:
    once()
    (tmp_path / "followed" / state.STATE).write_bytes(content)
    with pytest.raises(BadData, match="not a state of lt-convert follow"):
        once()


def test_two_do_not_run_at_once(run: Run, once: Any, tmp_path: Path) -> None:
    run.save(10)
    (tmp_path / "go").mkdir()
    words = ["follow", run.directory, "--to", "hf", "-o", tmp_path / "followed", "--once"]
    command = f": {{}}; touch {tmp_path}/begun; while test -d {tmp_path}/go; do sleep 0.05; done"
    first = subprocess.Popen([sys.executable, "-m", "lt_convert", *map(str, words), "--each", command], stderr=subprocess.PIPE)
    try:
        wait_for(tmp_path / "begun")
        with pytest.raises(TryAgain, match="another process"):
            once()
        second = subprocess.run([sys.executable, "-m", "lt_convert", *map(str, words)], capture_output=True, text=True)
        assert second.returncode == 75
    finally:
        (tmp_path / "go").rmdir()
        first.communicate(timeout=LIMIT_SECONDS)
    assert first.returncode == 0
    assert once() == (True, [])


def wait_for(path: Path) -> None:
    wait_until(path.exists, path)


def wait_until(condition: Callable[[], bool], path: Path) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, path
        time.sleep(0.01)


def start(run: Run, output: Path, *options: object) -> "subprocess.Popen[str]":
    words = ["follow", run.directory, "--to", "hf", "-o", output, *options]
    return subprocess.Popen(
        [sys.executable, "-m", "lt_convert", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_follows_until_it_is_told_to_end(number: signal.Signals, run: Run, tmp_path: Path) -> None:
    run.directory.rmdir()
    child = start(run, tmp_path / "followed", "--interval", "0.1", "--each", "touch {}/done")
    wait_for(tmp_path / "followed" / state.LOCK)
    time.sleep(0.5)
    run.directory.mkdir()
    for iteration in (10, 20):
        run.save(iteration)
        wait_for(tmp_path / "followed" / f"iter_{iteration:07d}" / "done")
    # Between two passes: a save that a signal cuts off may leave a partial file, which the next save takes over.
    record = tmp_path / "followed" / state.STATE
    wait_until(lambda: all(entry["succeeded"] for entry in json.loads(record.read_text())["checkpoints"].values()), record)
    child.send_signal(number)
    stdout, errors = child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == 128 + number
    assert [json.loads(line)["iteration"] for line in stdout.splitlines()] == [10, 20]
    assert errors.count("waiting") == 1
    assert not list((tmp_path / "followed").glob(".*partial*"))


def test_its_command_ends_with_it(run: Run, tmp_path: Path) -> None:
    """All processes of the command, and the next pass runs it again."""
    run.save(10)
    command = f": {{}}; sleep 1000 & echo $! > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid; wait"
    child = start(run, tmp_path / "followed", "--once", "--each", command)
    wait_for(tmp_path / "pid")
    child.terminate()
    child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == 143
    end = time.monotonic() + LIMIT_SECONDS
    while is_running(int((tmp_path / "pid").read_text())):
        assert time.monotonic() < end
        time.sleep(0.05)
    saved = json.loads((tmp_path / "followed" / state.STATE).read_text())["checkpoints"]["iter_0000010"]
    assert (saved["converted"], saved["succeeded"], saved["attempts"]) == (True, False, 0)


SIGNALLED = """
import os, pathlib, runpy, signal, subprocess, sys, time

class Signalled(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        while not pathlib.Path(sys.argv[-1].rpartition(" ")[2]).exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Signalled
runpy.run_module("lt_convert", run_name="__main__")
"""


def test_a_signal_while_its_command_starts_ends_the_command(run: Run, tmp_path: Path) -> None:
    run.save(10)
    command = f": {{}}; echo $$ > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid; sleep 1000; : {tmp_path}/pid"
    words = ["follow", run.directory, "--to", "hf", "-o", tmp_path / "followed", "--once", "--each", command]
    result = subprocess.run(
        [sys.executable, "-c", SIGNALLED, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert result.returncode == 143, result.stderr
    assert not is_running(int((tmp_path / "pid").read_text()))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_kills_at_random_repeat_a_step_at_most(run: Run, tmp_path: Path) -> None:
    """Every checkpoint ends up converted, whole and in order, and the command ran on each."""
    run.save(10, 20, 30, 40)
    command = f"echo {{}} >> {tmp_path}/log"
    for milliseconds in (300, 350, 400, 450, 500, 550, 600):
        child = start(run, tmp_path / "followed", "--once", "--each", command)
        time.sleep(milliseconds / 1000)
        child.kill()
        child.communicate()
    child = start(run, tmp_path / "followed", "--once", "--each", command)
    child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == 0
    ran = list(dict.fromkeys(lines(tmp_path / "log")))
    assert ran == [f"{tmp_path}/followed/iter_{number:07d}" for number in (10, 20, 30, 40)]
    for path in ran:
        assert lt_convert.verify(path)["problems"] == []


def test_what_is_being_written_is_never_read(run: Run, tmp_path: Path, models: dict[str, Path]) -> None:
    """A writer that takes its time writes each checkpoint in pieces, in its final place, and the tracker last."""
    child = start(run, tmp_path / "followed", "--interval", "0.1")
    stop = threading.Event()

    def train() -> None:
        for iteration in range(10, 60, 10):
            target = checkpoint_layout.iteration_directory(run.directory, iteration)
            target.mkdir()
            for path in sorted(run.checkpoint.iterdir()):
                if path.name != RECORD:
                    content = path.read_bytes()
                    with (target / path.name).open("wb") as file:
                        for begin in range(0, len(content), -(-len(content) // 4)):
                            file.write(content[begin : begin + -(-len(content) // 4)])
                            file.flush()
                            time.sleep(0.01)
            (run.directory / TRACKER).write_text(str(iteration))
        stop.set()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        wait_for(tmp_path / "followed" / "iter_0000050")
    finally:
        thread.join()
        child.terminate()
        _, errors = child.communicate(timeout=LIMIT_SECONDS)
    assert "warning" not in "".join(line for line in errors.splitlines() if "tokenizer" not in line), errors
    for iteration in range(10, 60, 10):
        assert lt_convert.verify(tmp_path / "followed" / f"iter_{iteration:07d}", models["grouped"])["same"]


def test_torchtitan_steps(models: dict[str, Path], tmp_path: Path) -> None:
    for step in (5, 10):
        model = Path(shutil.copytree(models["scaled"], tmp_path / f"model{step}"))
        tensors = load_file(model / "model.safetensors")
        tensors["model.norm.weight"].fill_(step)
        save_file(tensors, model / "model.safetensors", {"format": "pt"})
        lt_convert.convert(model, tmp_path / "run" / f"step-{step}", "torchtitan")
    request = FollowRequest(str(tmp_path / "run"), "hf", str(tmp_path / "followed"))
    assert following.follow(request, None, lambda _: None)
    for step in (5, 10):
        found = load_file(tmp_path / "followed" / f"step-{step}" / "model.safetensors")
        assert (found["model.norm.weight"] == step).all()


def test_a_run_on_s3(bucket: str, run: Run, tmp_path: Path) -> None:
    run.save(10)
    run.write(20)
    url = s3_server.upload(run.directory, f"{bucket}/run")
    checkpoints: list[Checkpoint] = []
    request = FollowRequest(url, "hf", str(tmp_path / "followed"))
    for expected in (["iter_0000010"], []):
        assert following.follow(request, None, checkpoints.append)
        assert [Path(one.path).name for one in checkpoints] == expected
        checkpoints.clear()
    with pytest.raises(UsageError, match="needs a local or mounted path"):
        following.follow(FollowRequest(url, "hf", f"{bucket}/followed"), None, checkpoints.append)


def test_its_state_is_private(run: Run, once: Any, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        run.save(10)
        once()
        assert (tmp_path / "followed" / state.STATE).stat().st_mode & 0o777 == 0o600
        assert once() == (True, [])
    finally:
        os.umask(before)

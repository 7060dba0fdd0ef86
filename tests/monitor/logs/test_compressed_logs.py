"""A compressed log gives every command the same as the plain one, whole, cut off or growing."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_monitor.logs.compressed_logs import DecompressedLog, decompressing, problem_of
from lt_monitor.runs.faults.tail_cause import tail_cause
from lt_shared.console import BadData

Compress = Callable[[bytes], bytes]
FORMATS: dict[str, Compress] = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": zstd.compress}
SAMPLES = Path(__file__).parents[1] / "samples"
LOG = (SAMPLES / "megatron_old.log").read_bytes() + b"\nRuntimeError: the end of it\n"


def steps(*numbers: int) -> bytes:
    line = b" iteration %d/ 90 | consumed samples: 8 | elapsed time per iteration (ms): 490.0 | lm loss: 2.5E+00 |\n"
    return b"".join(line % number for number in numbers)


def opened(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return decompressing(open(path, "rb"))


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("command", ["scrape", "summarize --json", "alert", "goodput --json", "tail-cause --json", "runs --json"])
def test_every_command_reads_a_compressed_log_as_the_plain_one(tool: Any, tmp_path: Path, ending: str, command: str) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "packed").mkdir()
    (tmp_path / "plain" / "a.log").write_bytes(LOG)
    (tmp_path / "packed" / f"a.log.{ending}").write_bytes(FORMATS[ending](LOG[:500]) + FORMATS[ending](LOG[500:]))
    plain, packed = tool(*command.split(), "plain/a.log"), tool(*command.split(), f"packed/a.log.{ending}")
    assert (packed.returncode, packed.stderr) == (plain.returncode, plain.stderr)
    assert _unplaced(packed.stdout.replace(f"packed/a.log.{ending}", "plain/a.log").replace("packed/a", "plain/a")) == _unplaced(
        plain.stdout
    )
    piped = tool(*command.split(), "-", stdin=(tmp_path / "packed" / f"a.log.{ending}").read_bytes())
    assert piped.returncode == plain.returncode


def _unplaced(output: str) -> list[Any]:
    """The lines, without the file's own time of change."""
    lines = [json.loads(line) if line.startswith("{") else line for line in output.splitlines()]
    for line in lines:
        for run in line.get("runs", [line]) if isinstance(line, dict) else ():
            run.pop("updated", None)
    return lines


@given(st.binary(max_size=3000), st.sampled_from(sorted(FORMATS)), st.integers(1, 4), st.lists(st.integers(0, 3000), max_size=6))
@settings(max_examples=150)
def test_content_and_offsets_are_those_of_the_plain_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str, members: int, offsets: list[int]
) -> None:
    size = len(content) // members + 1
    packed = b"".join(FORMATS[ending](content[begin : begin + size]) for begin in range(0, len(content) + 1, size))
    with opened(tmp_path_factory.mktemp("log") / "a", packed) as log:
        assert log.read() == content
        assert problem_of(log) is None
        assert log.seek(0, 2) == len(content)
        for offset in offsets:
            assert log.seek(offset) == min(offset, len(content))
            assert log.read(7) == content[offset : offset + 7]


@given(st.sampled_from(sorted(FORMATS)), st.integers(9, 1500), st.booleans())
@settings(max_examples=150)
def test_damage_is_said_and_loses_nothing_before_it(
    tmp_path_factory: pytest.TempPathFactory, ending: str, place: int, is_cut: bool
) -> None:
    first = steps(*range(1, 30))
    packed = FORMATS[ending](first)
    rest = FORMATS[ending](steps(*range(30, 900)))
    place = min(place, len(rest) - 1)
    damaged = rest[:place] if is_cut else rest[:place] + bytes([rest[place] ^ 0xFF]) + rest[place + 1 :]
    with opened(tmp_path_factory.mktemp("log") / "a", packed + damaged) as log:
        content = log.read()
        assert content.startswith(first)
        if is_cut:
            assert "cut off" in str(problem_of(log))
            assert (first + steps(*range(30, 900))).startswith(content)


@pytest.mark.parametrize("ending", FORMATS)
def test_a_log_that_is_cut_off_is_read_up_to_there(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / f"a.log.{ending}"
    log.write_bytes(FORMATS[ending](steps(1, 2, 3)) + FORMATS[ending](steps(*range(4, 400)))[:-40])
    assert (tail_cause([str(log)]).last_step or 0) >= 3
    said = "is cut off, or still being written, in the middle of its compressed data; the text before it is read"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("ending", FORMATS)
def test_a_log_without_anything_before_its_damage_is_an_error(ending: str, tmp_path: Path) -> None:
    log = tmp_path / f"a.log.{ending}"
    log.write_bytes(FORMATS[ending](steps(1, 2, 3))[:12])
    with pytest.raises(BadData, match=r"a\.log.*: is (cut off|damaged)"):
        tail_cause([str(log)])


@pytest.mark.parametrize("ending", FORMATS)
def test_a_growing_log_gives_new_steps_only(tool: Any, tmp_path: Path, ending: str) -> None:
    """As `job | gzip >> a.log.gz` writes it: with each job another stream, the last one perhaps unfinished."""
    log = tmp_path / f"a.log.{ending}"
    parts = [steps(1, 2), steps(3), steps(4, 5)]
    for number, expected in enumerate(([1, 2], [3], [4, 5], [])):
        log.write_bytes(b"".join(FORMATS[ending](part) for part in parts[: number + 1]))
        scraped = tool("scrape", "--state", "state", log.name)
        assert [json.loads(line)["step"] for line in scraped.stdout.splitlines()] == expected
        assert scraped.stderr == ""
    whole = FORMATS[ending](steps(6, 7))
    log.write_bytes(b"".join(map(FORMATS[ending], parts)) + whole[: len(whole) // 2])
    seen = [json.loads(line)["step"] for line in tool("scrape", "--state", "state", log.name).stdout.splitlines()]
    log.write_bytes(b"".join(map(FORMATS[ending], parts)) + whole)
    seen += [json.loads(line)["step"] for line in tool("scrape", "--state", "state", log.name).stdout.splitlines()]
    assert seen == [6, 7]


def test_one_byte_at_a_time_and_padding(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", gzip.compress(b"abc\n") + bytes(700) + gzip.compress(b"def\n") + bytes(9))
    assert isinstance(log, DecompressedLog)
    assert [log.read1(1) for _ in range(9)] == [b"a", b"b", b"c", b"\n", b"d", b"e", b"f", b"\n", b""]
    assert (log.tell(), problem_of(log)) == (8, None)
    assert problem_of(opened(tmp_path / "b", b"plain text")) is None

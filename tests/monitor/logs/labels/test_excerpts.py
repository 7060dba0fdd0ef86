"""Long labelled logs, of which only some lines are unlabelled: they say the same as if all lines were."""

import json
import random

import pytest
from wrapped_logs import LOGGERS, SHIPPERS, Lines

from lt_monitor.events.records import Record
from lt_monitor.logs.fast import excerpts
from lt_monitor.logs.fast.prefilter import Prefilter
from lt_monitor.logs.labels import removal
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.searched_keywords import KEYWORDS, SELECTION

KINDS = {**SHIPPERS, **LOGGERS}
BLOCK_BYTES = 1 << 16
NOISE = (
    "ip-10-1-2-3:4711:4811 [{0}] NCCL INFO Channel {1:02d}/32 : 0[0] -> 1[1] via P2P/IPC/read",
    "  warnings.warn(_create_warning_msg(",
    '> building train, validation & test "datasets" for the model in C:\\runs ...',
    "[2026-01-16 07:32:{1:02d},123] [INFO] [real_accelerator.py:{1}:get_accelerator] Setting the accelerator to cuda",
    "Fortschritt: {1} Schritte, Gerät {0} läuft",
)
STEPS = {
    "nanogpt": "iter {0}: loss 3.{0:04d}, time 812.{0}ms, mfu 21.30%",
    "megatron": " [2026-03-03 10:00:09] iteration {0:8d}/    1000 | consumed samples: {0:12d} | elapsed time per iteration (ms):"
    " 8100.4 | global batch size:   256 | lm loss: 5.4{0:05d}E+00 | loss scale: 1.0 |",
    "huggingface": "{{'loss': 3.{0:04d}, 'grad_norm': 1.41, 'epoch': 0.{0:04d}}}",
    "json": '{{"step": {0}, "loss": 3.{0:04d}, "lr": 0.0003}}',
}
EVENTS = (
    "RuntimeError: unable to write to file </torch_4711_3>",
    "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-03-03T10:00:00 DUE TO PREEMPTION ***",
    "bash: line 7: 4711 Killed",
    "train.sh: Zeile 3: 4711 Getötet                python train.py",
    "NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.",
)


def _log(steps: str, with_bars: bool = False) -> Lines:
    choice = random.Random(3)
    lines = []
    for number in range(1, 21):
        lines += [choice.choice(NOISE).format(choice.randrange(8), choice.randrange(60)) for _ in range(90)]
        if with_bars:
            lines += [f"  1%|          | {number * 10}/1752 [00:{number:02d}<1:22:01,  2.83s/it]"]
        lines += [steps.format(number), *([EVENTS[number // 4 - 1]] if number % 4 == 0 else [])]
    return lines


def _text(lines: Lines) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _records(text: bytes) -> list[Record]:
    parser, records, offset = LogParser(), [], 0
    while offset < len(text):
        end = text.find(b"\n", offset + BLOCK_BYTES) + 1 or len(text)
        records += parser.parse(text[offset:end], offset).records("a.log", "a")
        offset = end
    return records


def _wrapped(names: tuple[str, ...], lines: Lines) -> bytes:
    for name in names:
        lines = KINDS[name](lines)
    return _text(lines)


def _nestings(count: int) -> list[tuple[str, ...]]:
    choice = random.Random(11)
    return [tuple(choice.sample(list(KINDS), 2)) for _ in range(count)]


@pytest.mark.parametrize("names", [*((name,) for name in KINDS), *_nestings(20)], ids="-in-".join)
def test_an_excerpt_has_the_events_of_the_whole_block(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for trainer, steps in STEPS.items():
        text = _wrapped(names, _log(steps, trainer == "huggingface"))
        records = _records(text)
        with monkeypatch.context() as whole:
            whole.setattr(removal, "EXCERPT_BYTES", len(text))
            assert records == _records(text)
        assert sum(record["kind"] == "step" for record in records) == (0 if trainer == "json" else 20)


def test_most_of_a_log_stays_labelled() -> None:
    for names in (("cri",), ("docker",), ("logging",), ("cri", "docker"), ("ray-colours", "docker")):
        labels = removal.LabelRemoval()
        text = _wrapped(names, _log(STEPS["megatron"]))
        unlabelled = labels.remove(text, SELECTION)
        assert unlabelled is not None
        assert len(unlabelled.text) < len(text) / 10


def test_keywords_are_found_in_json() -> None:
    prefilter = Prefilter(excerpts.escaped(KEYWORDS))
    for keyword in KEYWORDS:
        text = keyword.decode()
        for is_ascii in (True, False):
            once = json.dumps({"log": f"a {text}", "stream": "stderr"}, ensure_ascii=is_ascii)
            escaped_by_go = once.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
            for line in (once, escaped_by_go, json.dumps({"log": once}, ensure_ascii=is_ascii), once.replace("/", r"\/")):
                block = b"  " + line.encode()
                assert next(prefilter.confirmed(block, range(len(block))), None) is not None, line


@pytest.mark.parametrize("tail", [r"\u0041 line", r"caf\u0065"])
def test_letters_by_number_may_hide_a_keyword(tail: str) -> None:
    """A line with a letter that JSON need not escape is never left out."""
    lines = SHIPPERS["docker"](_log(STEPS["nanogpt"]))
    lines[500] = lines[500].replace('"log": "', f'"log": "{tail} ')
    unlabelled = removal.LabelRemoval().remove(_text(lines), SELECTION)
    assert unlabelled is not None
    assert json.loads(f'"{tail}"').encode() in unlabelled.text

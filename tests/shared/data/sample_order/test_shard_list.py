"""The list of a stream's shards: whole or growing, written once or by a producer that was started again."""

import json
from typing import Any

import pytest

from lt_shared.console import BadData
from lt_shared.data.sample_order import shard_list


def line(number: int, **changed: Any) -> str:
    record = {"v": 1, "kind": "dataset", "prefix": f"/data/web-part{number:05d}", "documents": 3, "tokens": 100 + number}
    return json.dumps(record | {"stream": "/data/web", "part": number, "weight": 100.0 + number} | changed) + "\n"


def end(count: int) -> str:
    return json.dumps({"v": 1, "kind": "end", "count": count}) + "\n"


def test_a_list_that_grows() -> None:
    text = line(0) + line(1) + end(2)
    seen = [shard_list.parse(text[:size], "list") for size in range(len(text) + 1)]
    assert [len(found.shards) for found in seen] == sorted(len(found.shards) for found in seen)
    assert [found.is_finished for found in seen].index(True) == len(text)
    assert [shard.prefix for shard in seen[-1].shards] == ["/data/web-part00000", "/data/web-part00001"]
    assert seen[-1].name == "/data/web"


@pytest.mark.parametrize("again", [line(0) + line(1) + line(2) + end(3), line(2) + end(3)])
def test_a_producer_that_was_started_again(again: str) -> None:
    found = shard_list.parse(line(0) + line(1) + again, "list")
    assert (len(found.shards), found.is_finished) == (3, True)
    # The shards may have been moved in between.
    assert shard_list.parse(line(0) + line(0, prefix="/elsewhere") + line(1), "list").shards[0].prefix == "/data/web-part00000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line(0) + line(2), "shard 2 where 1 should follow"),
        (line(0) + line(0, tokens=5), "made anew"),
        (line(0) + line(1, stream="/data/code"), "are of /data/web"),
        (line(0) + end(2), "1 shards, but the end line says 2"),
        (line(0) + line(1, stream=None, part=None), "not a shard of a stream"),
        (line(0) + line(1, stream=None), "one of stream and part"),
        (line(0) + "/data/web-part00001\n", "not JSON"),
    ],
)
def test_what_is_no_stream_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadData, match=said):
        shard_list.parse(text, "list")


def test_what_begins_a_stream() -> None:
    assert shard_list.begins(line(0))
    for other in ("", "/data/web", end(0), line(0, stream=None, part=None), "{}", "{"):
        assert not shard_list.begins(other)

"""What stands in for a known class or function stays as it is, whatever a pickle does to it."""

from typing import Any

import pytest

from lt_shared import pickles
from lt_shared.console import BadData


def make(number: int = 1) -> int:
    return number


class Box:
    size = 1

    def fill(self) -> None:
        pass


STAND_INS = {"torch.make": make, "torch.Box": Box}
MAKE, BOX = b"ctorch\nmake\n", b"ctorch\nBox\n"
ATTRIBUTE, DEFAULTS = b"}X\x04\0\0\0evilK\x01s", b"}X\x0c\0\0\0__defaults__K\x07\x85s"
CHANGING = {
    "an attribute of a function": MAKE + ATTRIBUTE + b"b",
    "an attribute of a function, set": MAKE + b"N" + ATTRIBUTE + b"\x86b",
    "the arguments of a function": MAKE + b"N" + DEFAULTS + b"\x86b",
    "an attribute of a class": BOX + b"N" + ATTRIBUTE + b"\x86b",
    "an attribute that a class has": BOX + b"N}X\x04\0\0\0sizeK\x07s\x86b",
    "a method of a class": BOX + b"N}X\x04\0\0\0fillK\x07s\x86b",
}


def loaded(content: bytes) -> Any:
    return pickles.load_known(b"\x80\x02" + content + b".", STAND_INS.keys(), "object", None, STAND_INS)


@pytest.mark.parametrize("changing", CHANGING)
def test_a_pickle_that_changes_one_is_refused(changing: str) -> None:
    before = dict(vars(make)), make.__defaults__, dict(vars(Box))
    with pytest.raises(BadData, match="object: not a readable pickle"):
        loaded(CHANGING[changing])
    assert (dict(vars(make)), make.__defaults__, dict(vars(Box))) == before


def test_they_are_called_as_they_are() -> None:
    assert loaded(MAKE + b"K\x07\x85R") == 7
    assert type(loaded(BOX + b")R")) is Box
    assert loaded(BOX + b")\x81" + ATTRIBUTE + b"b").evil == 1
    with pytest.raises(BadData, match=r"it refers to torch\.other"):
        loaded(b"ctorch\nother\n")

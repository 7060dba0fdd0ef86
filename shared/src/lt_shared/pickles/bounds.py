"""Bound the memory and time that a pickle costs, before it is unpickled.

A few bytes are enough to kill an unpickler or to stop it for ever: it allocates memory for a size before it reads that many
bytes, a memo table up to an index that the pickle chooses, and the hash of a tuple, when it becomes a key, visits every tuple
inside it, without a limit to their depth and once for every reference. The hash of a number is its remainder by 2^61 - 1: whoever
chooses large numbers lets all keys collide, and each is compared with all before it. So the pickle's operations are run here on
numbers of tuples alone, and large numbers are counted. For the index of 400,000 pieces (63 MB) that takes 4.4 s beside the 1.3 s
of the unpickler (2 cores, 2026-11-23).
"""

import functools
import pickle
import pickletools
from typing import Any

# A stack of 8 MiB ends at a depth between 60,000 and 100,000. In checkpoints a tuple holds a dozen.
MAX_TUPLES = 20_000
# A generator of random numbers has a state of 128 bits. Of numbers from 7 bytes on there are no more than MAX_LARGE.
_NUMBER_BYTES, _LARGE_BYTES, MAX_LARGE = 32, 7, 1000
_TOO_LARGE = "it holds numbers as large, or as many large ones, as no checkpoint does"
_TOO_MANY = "it nests tuples, or refers to the same ones, as no checkpoint does"
# How many bytes hold the count of the bytes that follow.
_COUNT_BYTES = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT4: 4, pickletools.TAKEN_FROM_ARGUMENT4U: 4,
                pickletools.TAKEN_FROM_ARGUMENT8U: 8}  # fmt: skip
_LINES = {"INST": 2, "GLOBAL": 2}
_PUSH, _NOTHING, _GET, _PUT, _MEMOIZE, _JOIN, _POP = range(7)
_MARK, _JOIN_TO_MARK, _POP_TO_MARK, _REPLACE_TO_MARK, _DUP, _STOP, _LONG = range(7, 14)
_ACTIONS = {
    _GET: ("GET", "BINGET", "LONG_BINGET"),
    _PUT: ("PUT", "BINPUT", "LONG_BINPUT"),
    _NOTHING: ("PROTO", "FRAME", "BINPERSID", "READONLY_BUFFER"),
    _JOIN: ("TUPLE1", "TUPLE2", "TUPLE3", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "STACK_GLOBAL"),
    _POP: ("APPEND", "BUILD", "POP", "SETITEM"),
    _JOIN_TO_MARK: ("TUPLE", "INST", "OBJ"),
    _POP_TO_MARK: ("APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK"),
    _REPLACE_TO_MARK: ("LIST", "DICT", "FROZENSET"),
    _MEMOIZE: ("MEMOIZE",),
    _MARK: ("MARK",),
    _DUP: ("DUP",),
    _LONG: ("INT", "LONG", "LONG1", "LONG4"),
    _STOP: ("STOP",),
}
# How many objects those without a mark take from the stack.
_TAKEN = {"TUPLE2": 2, "REDUCE": 2, "NEWOBJ": 2, "STACK_GLOBAL": 2, "TUPLE3": 3, "NEWOBJ_EX": 3, "SETITEM": 2}


@functools.cache
def _operations() -> list[tuple[int, int, int, int] | None]:
    """Return, by opcode: action, objects taken, argument size in bytes (negative as in `pickletools`), and argument lines."""
    actions = {name: action for action, names in _ACTIONS.items() for name in names}
    table: list[Any] = [None] * 256
    for code in pickletools.opcodes:
        argument_bytes = code.arg.n if code.arg else 0
        action = actions.get(code.name, _PUSH)
        table[ord(code.code)] = (action, _TAKEN.get(code.name, 1), argument_bytes, _LINES.get(code.name, 1))
    return table


def check(data: bytes, number_bytes_limit: int = _NUMBER_BYTES, large_limit: int = MAX_LARGE) -> None:
    """Raise UnpicklingError for a size or an index beyond the data, and for more than MAX_TUPLES nested tuples.

    Numbers of up to 8 bytes are unlimited, because at most nine of them share a hash. A truncated pickle, or a pickle that breaks
    the stack's rules, may raise IndexError or ValueError as well.
    """
    operations, position, end = _operations(), 0, len(data)
    # Tuples in each object on the stack, and in those that the pickle has numbered; what cannot be hashed counts as none.
    stack: list[int] = []
    numbered: list[int] = []
    put: dict[int, int] = {}
    marks: list[int] = []
    large = 0
    while position < end:
        operation = operations[data[position]]
        position += 1
        if operation is None:
            break
        action, popped, size, lines = operation
        if action == _MEMOIZE:
            numbered.append(stack[-1])
            continue
        start = position
        if size >= 0:
            position += size
        elif size == pickletools.UP_TO_NEWLINE:
            for _ in range(lines):
                position = data.find(b"\n", position) + 1 or end
        else:
            count = _COUNT_BYTES[size]
            position += count + int.from_bytes(data[position : position + count], "little")
            if position > end:
                raise pickle.UnpicklingError("it is cut off")
        if action == _PUSH:
            stack.append(0)
        elif action == _GET:
            number = data[start] if size == 1 else _number(data[start:position], size)
            stack.append(numbered[number] if numbered else put[number])
        elif action == _JOIN:
            tuples = 1
            for _ in range(popped):
                tuples += stack.pop()
            if tuples > MAX_TUPLES:
                raise pickle.UnpicklingError(_TOO_MANY)
            stack.append(tuples)
        elif action == _MARK:
            marks.append(len(stack))
        elif action == _POP_TO_MARK:
            del stack[marks.pop() :]
        elif action == _POP:
            if marks and marks[-1] == len(stack):
                marks.pop()
            else:
                del stack[-popped:]
        elif action == _JOIN_TO_MARK:
            bottom = marks.pop()
            tuples = 1 + sum(stack[bottom:])
            if tuples > MAX_TUPLES:
                raise pickle.UnpicklingError(_TOO_MANY)
            stack[bottom:] = (tuples,)
        elif action == _REPLACE_TO_MARK:
            stack[marks.pop() :] = (0,)
        elif action == _PUT:
            number = _number(data[start:position], size)
            if number > end:
                raise pickle.UnpicklingError("it numbers more objects than it holds")
            put[number] = stack[-1]
        elif action == _LONG:
            stack.append(0)
            number_bytes = _number_bytes(data[start:position], size)
            large += number_bytes >= _LARGE_BYTES
            if number_bytes > number_bytes_limit or large > large_limit:
                raise pickle.UnpicklingError(_TOO_LARGE)
        elif action == _DUP:
            stack.append(stack[-1])
        elif action == _STOP:
            break
    if numbered and put:
        raise pickle.UnpicklingError("it numbers its objects in two ways")


def _number(argument: bytes, size: int) -> int:
    return int(argument) if size == pickletools.UP_TO_NEWLINE else int.from_bytes(argument, "little")


def _number_bytes(argument: bytes, size: int) -> int:
    """Return the bytes that a number takes; five bytes correspond to at least twelve decimal digits."""
    return len(argument) * 5 // 12 if size == pickletools.UP_TO_NEWLINE else len(argument) - _COUNT_BYTES[size]

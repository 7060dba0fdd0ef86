"""A trie of tokens for compiled code: which of some byte strings begins at an offset of a text, the longest of several.

Special tokens and SentencePiece's user-defined pieces are found with it. Columns are the bytes that occur in the tokens, not all
256: the 2,048 special tokens of Llama 4 take 0.9 MB instead of 6.6. Callers look at `is_first` before they walk the trie, which
settles nearly all bytes of a text.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from lt_preprocess.compiler.jit import inlined
from lt_preprocess.texts import Bytes
from lt_preprocess.tokenizers.base import Ids


class TokenTrie(NamedTuple):
    """`is_first` uint8 [256]: 1 for the first bytes of tokens. `columns` uint8 [256]: the column of a byte, 0 for others.

    `children` int32 [nodes, columns]: the node after a byte, 0 for none (the root is no child). `numbers` int32 [nodes]: the
    token that ends at a node, -1 for none.
    """

    is_first: Bytes
    columns: Bytes
    children: Ids
    numbers: Ids


def build(tokens: Sequence[bytes], aliases: Mapping[int, bytes] = MappingProxyType({})) -> TokenTrie:
    """Build the trie of tokens, numbered in their order; no token is empty and no two are equal.

    `aliases` maps bytes that occur in no token to the token bytes that they may stand for in a text.
    """
    used = sorted({byte for token in tokens for byte in token} | {*aliases})
    columns = np.zeros(256, np.uint8)
    columns[used] = np.arange(1, len(used) + 1)
    nodes: list[dict[int, int]] = [{}]
    ends: dict[int, int] = {}
    for number, token in enumerate(tokens):
        node = 0
        for byte in token:
            if byte not in nodes[node]:
                nodes[node][byte] = len(nodes)
                nodes.append({})
            node = nodes[node][byte]
        ends[node] = number
    for alias, spelled in aliases.items():
        for following in nodes:
            branches: dict[int, int] | None = following
            for byte in spelled[:-1]:
                branches = nodes[branches[byte]] if branches and byte in branches else None
            if branches and spelled[-1] in branches:
                following[alias] = branches[spelled[-1]]
    children = np.zeros((len(nodes), len(used) + 1), np.int32)
    for node, following in enumerate(nodes):
        for byte, child in following.items():
            children[node, columns[byte]] = child
    numbers = np.full(len(nodes), -1, np.int32)
    numbers[list(ends)] = list(ends.values())
    return TokenTrie((children[0, columns] > 0).astype(np.uint8), columns, children, numbers)


@inlined
def longest_match(trie: TokenTrie, data: Bytes, start: int, end: int) -> tuple[int, int]:
    """The number of the longest token at `start` and the offset after it; -1 when there is none."""
    node, at, number, stop = 0, start, -1, start
    while at < end:
        node = trie.children[node, trie.columns[data[at]]]
        if node == 0:
            break
        at += 1
        if trie.numbers[node] >= 0:
            number, stop = trie.numbers[node], at
    return number, stop

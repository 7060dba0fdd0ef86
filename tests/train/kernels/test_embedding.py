"""The gradient of an embedding against torch's."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lt_train.kernels.embedding import BLOCK, add_rows

ROWS = 7


@given(
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40),
    st.sampled_from([1, 8, BLOCK + 3]),
    st.sampled_from([(torch.float32, 2e-6), (torch.bfloat16, 6e-2)]),
)
def test_rows_are_added_to_what_is_there(tokens: list[int], width: int, kind: tuple[torch.dtype, float]) -> None:
    dtype, tolerance = kind
    torch.manual_seed(0)
    gradient, buffer = torch.randn(len(tokens), width, dtype=dtype), torch.randn(ROWS, width, dtype=dtype)
    expected = buffer.float().index_add(0, torch.tensor(tokens), gradient.float())
    add_rows(gradient, torch.tensor(tokens), buffer)
    torch.testing.assert_close(buffer.float(), expected, atol=tolerance, rtol=tolerance)


def test_gradients_may_lie_anywhere() -> None:
    gradient, tokens, buffer = torch.ones(1, 2).expand(4, 2), torch.tensor([1, 0, 1, 1]), torch.zeros(2, 2)
    add_rows(gradient, tokens, buffer)
    assert buffer.tolist() == [[1, 1], [3, 3]]


def test_tokens_behind_the_last_row_are_left_out() -> None:
    gradient, tokens, buffer = torch.ones(4, 2), torch.tensor([2, 0, 2, 1]), torch.zeros(2, 2)
    add_rows(gradient, tokens, buffer)
    assert buffer.tolist() == [[1, 1], [1, 1]]

"""Rows exchanged through peers' memory, on threads in place of ranks; they are copied at once, or as late as possible."""

import pytest
import torch
from thread_ranks import Memory, on_ranks
from torch import Tensor

from lt_train.ops.peer_exchange import PeerExchange

COUNT, WIDTH = 8, 3


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("size", [2, 4])
def test_a_stack_of_layers(size: int, late: bool) -> None:
    """Gathers and sums in the order of layers' backward passes, each with other numbers, many times more than slots."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(12, COUNT, WIDTH, generator=generator)
    terms = torch.randn(12, size, COUNT, WIDTH, generator=generator)

    def work(exchange: PeerExchange, memory: Memory) -> int:
        share = COUNT // size
        mine = slice(memory.rank * share, (memory.rank + 1) * share)
        for index in range(12):
            term = terms[index, memory.rank]

            def compute(place: slice, out: Tensor, term: Tensor = term) -> None:
                out.copy_(term[place])

            expected = terms[index].sum(0)[mine]
            gathered = exchange.gather(rows[index][mine], whole=index % 3 > 0)
            if index % 3 == 2:
                # A linear layer's: the rows are needed behind the first GEMM.
                finish = exchange.start_sum(COUNT, WIDTH, term, compute)
                assert torch.equal(gathered.whole(), rows[index])
                torch.testing.assert_close(finish(), expected)
            else:
                found = torch.zeros(COUNT, WIDTH)
                places = []
                for place, part in gathered.parts():
                    found[place] = part
                    places.append(place)
                assert places[0] == mine
                assert torch.equal(found, rows[index])
                if index % 3:
                    assert torch.equal(gathered.whole(), rows[index])
                torch.testing.assert_close(exchange.sum(COUNT, WIDTH, term, compute), expected)
        return memory.barriers

    (barriers,) = set(on_ranks(size, late, work))
    # One for a gather or a started sum, one for each peer for another; more only where a slot comes round before a barrier.
    assert barriers <= 12 + 4 + 8 * (size - 1) + 4


def test_a_slot_is_not_written_before_all_have_read_it() -> None:
    """Three sums are waited for only after they have all been started; the fourth takes the first one's slot."""

    def work(exchange: PeerExchange, memory: Memory) -> list[float]:
        like = torch.empty(0)
        finishes = [
            exchange.start_sum(2, 1, like, lambda place, out, number=number: out.fill_(number)) for number in (1.0, 2.0, 4.0, 8.0)
        ]
        return [float(finish()) for finish in finishes]

    assert on_ranks(2, True, work) == [[2, 4, 8, 16]] * 2

"""Choose how tensor-parallel ranks exchange rows."""

from megatron.core import parallel_state

from lt_train.config.kernels import PEER_MEMORY, Kernels
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.parallelism import Parallelism
from lt_train.ops.peer_exchange import PeerExchange
from lt_train.ops.row_exchange import AllRows, Exchange, OneRank, SharedRows
from lt_train.parallel.symmetric_memory import SymmetricMemory


def choose_exchange(parallelism: Parallelism, batches: Batches, hidden_size: int, kernels: Kernels) -> Exchange:
    """Return the exchange for all layers. All ranks of the tensor-parallel group call it."""
    if parallelism.tensor == 1:
        return OneRank()
    group = parallel_state.get_tensor_model_parallel_group()
    if not parallelism.sequence:
        return AllRows(group)
    if kernels.collectives != PEER_MEMORY:
        return SharedRows(group)
    rows = batches.micro_batch_size * batches.seq_length // parallelism.context
    return PeerExchange(SymmetricMemory(group, rows * hidden_size * 2))

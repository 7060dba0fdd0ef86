"""What a checkpoint takes on disk by the plan: the bytes of a parameter are explained in `checkpoint.disk_space`."""

from lt_train.config.run_config import RunConfig


def parameter_bytes(config: RunConfig) -> tuple[int, int]:
    """Of a parameter: the weight in its type, and the optimizer's copy and two moments in float32, where they are saved."""
    weight, state = (2, 12) if config.precision.half else (4, 8)
    return weight, 0 if config.checkpointing.no_save_optim else state


def checkpoint_bytes(config: RunConfig) -> int:
    """A checkpoint's size."""
    return config.architecture.parameters(config.padded_vocab_size) * sum(parameter_bytes(config))


def local_set_bytes(config: RunConfig, nodes: int) -> int:
    """The most that a node holds of a local checkpoint: its own shards, and those of another node.

    The first data-parallel ranks write the weights, and without the distributed optimizer its state, too: one node may have all.
    """
    size = checkpoint_bytes(config)
    weights = config.architecture.parameters(config.padded_vocab_size) * parameter_bytes(config)[0]
    if nodes == 1 or not config.shards_optimizer:
        return size
    return min(size, weights + 2 * (size - weights) // nodes)

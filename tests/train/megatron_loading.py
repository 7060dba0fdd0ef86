"""megatron-core alone, without lt-train's model: `python megatron_loading.py RUN...` loads runs as Megatron-LM's trainer does.

It asks for the same entries in the same order as load_checkpoint in Megatron-LM's training/checkpointing.py, for a GPTModel of
megatron-core's own layers. Only the arguments that describe the model are taken from the checkpoint.
"""

import os
import sys
from pathlib import Path
from typing import Any

from reserved_ports import free_port

from lt_train.launch import rank_imports
from lt_train.process import device
from lt_train.process.rank_environment import RankEnvironment

COMPARED = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "make_vocab_size_divisible_by")
READ = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "world_size",
    "data_parallel_size",
    "consumed_train_samples",
)


def main(runs: list[str]) -> None:
    place = RankEnvironment(0, 0, 1, 1, "127.0.0.1", free_port(), "test")
    os.environ.update(place.variables())
    # Of megatron-core's own imports these are a third.
    rank_imports.leave_out("wandb", "tensorboard")
    device.prepare(device.CPU, place)
    import torch
    from megatron.core import parallel_state, tensor_parallel

    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    for run in runs:
        load(Path(run))


def load(run: Path) -> None:
    import torch
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import Float16Module

    from lt_train.optim.optimizer import create_state

    iteration = int((run / "latest_checkpointed_iteration.txt").read_text())
    directory = str(run / f"iter_{iteration:07d}")
    common = dist_checkpointing.load_common_state_dict(directory)
    args = common["args"]
    for name in (*COMPARED, *READ):
        assert getattr(args, name) is not None, name
    metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    metadata["dp_cp_group"] = parallel_state.get_data_parallel_group(with_context_parallel=True)

    config = TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        normalization=args.normalization,
        gated_linear_unit=args.swiglu,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=args.add_bias_linear,
        bf16=args.bf16,
        params_dtype=args.params_dtype,
        use_cpu_initialization=True,
    )
    options = {
        "vocab_size": args.padded_vocab_size,
        "max_sequence_length": args.max_position_embeddings,
        "share_embeddings_and_output_weights": not args.untie_embeddings_and_output_weights,
        "position_embedding_type": args.position_embedding_type,
    }
    model: Any
    if getattr(args, "hybrid_layer_pattern", None):
        # megatron-core 0.16 has none.
        from hybrid_stack import dense_model

        model = dense_model(config, args.hybrid_layer_pattern, **options)
    else:
        model = GPTModel(config, get_gpt_layer_local_spec(normalization=args.normalization), **options)
    distributed = args.use_distributed_optimizer
    wrapped = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(use_distributed_optimizer=distributed),
        Float16Module(config, model) if args.bf16 else model,
    )
    settings = OptimizerConfig(
        optimizer="adam",
        lr=args.lr,
        min_lr=args.min_lr,
        bf16=args.bf16,
        params_dtype=args.params_dtype,
        use_distributed_optimizer=distributed,
    )
    optimizer = get_megatron_optimizer(settings, [wrapped])
    scheduler = OptimizerParamScheduler(
        optimizer, 0.0, args.lr, args.min_lr, 0, 16, args.lr_decay_style, args.weight_decay, args.weight_decay, 16, "constant",
        use_checkpoint_opt_param_scheduler=True,
    )  # fmt: skip
    if distributed:
        make_loadable(optimizer, create_state)

    model_state = model.sharded_state_dict(metadata=metadata)
    optimizer_state = optimizer.sharded_state_dict({"model": model_state}, is_loading=True, metadata=metadata)
    asked = {"model": model_state, "optimizer": optimizer_state}
    if args.world_size == 1:
        asked["rng_state"] = ShardedObject("rng_state", [{}], (1, 1), (0, 0), replica_id=0)
    loaded = dist_checkpointing.load(asked, directory)

    assert (loaded["iteration"], loaded["checkpoint_version"]) == (iteration, 3.0)
    assert loaded["num_floating_point_operations_so_far"] > 0
    assert loaded["args"].consumed_train_samples == iteration * args.global_batch_size
    missing, unexpected = model.load_state_dict(loaded["model"], strict=False)
    assert not [key for key in (*missing, *unexpected) if "_extra_state" not in key], (missing, unexpected)
    optimizer.load_state_dict(loaded["optimizer"])
    scheduler.load_state_dict(loaded["opt_param_scheduler"])
    assert scheduler.num_steps == iteration * args.global_batch_size
    if "rng_state" in asked:
        (states,) = loaded["rng_state"]
        torch.set_rng_state(states["torch_rng_state"])
        tensor_parallel.get_cuda_rng_tracker().set_states(states["rng_tracker_states"])
        assert states["rng_tracker_states"]
    inner = getattr(optimizer, "chained_optimizers", [optimizer])[0]
    moments = [state["exp_avg"] for state in inner.optimizer.state.values()]
    assert moments
    assert all(float(moment.abs().sum()) > 0 for moment in moments)


def make_loadable(optimizer: Any, create_state: Any) -> None:
    """Without TransformerEngine's or apex's Adam, the distributed optimizer cannot even load what it has saved itself.

    It wants a state to load into, and torch's step counter among the tensors of the checkpoint, where it never saves it.
    """
    create_state(optimizer)
    for inner in getattr(optimizer, "chained_optimizers", [optimizer]):
        restore = inner._set_main_param_and_optimizer_states

        def restore_present(parameter: Any, tensors: Any, inner: Any = inner, restore: Any = restore) -> None:
            restore(parameter, {**inner._get_main_param_and_optimizer_states(parameter), **tensors})

        inner._set_main_param_and_optimizer_states = restore_present


if __name__ == "__main__":
    main(sys.argv[1:])

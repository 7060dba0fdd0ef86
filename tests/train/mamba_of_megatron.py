"""Compare lt-train's Mamba mixer with megatron-core's, which needs mamba-ssm, a CUDA package.

Stand-ins replace that package's two functions: a scan token by token, and a norm with gates. Everything else is megatron-core's:
the order of the projection's and the convolution's channels, the use of every parameter, and the shards of its checkpoints.
Prints JSON.
"""

import contextlib
import json
import os
import sys
import types
from typing import Any

import torch
from torch import Tensor

from lt_train.megatron import cpu_backend


class RMSNorm(torch.nn.Module):
    def __init__(
        self, size: int, eps: float, group_size: int, norm_before_gate: bool, dtype: Any = None, device: Any = None, **other: Any
    ):
        super().__init__()
        assert not norm_before_gate
        self.weight, self.eps, self.group_size = torch.nn.Parameter(torch.ones(size)), eps, group_size

    def forward(self, values: Tensor, z: Tensor) -> Tensor:
        grouped = (values * torch.nn.functional.silu(z)).unflatten(-1, (-1, self.group_size))
        return torch.nn.functional.rms_norm(grouped, (self.group_size,), eps=self.eps).flatten(-2) * self.weight


def scan(x: Tensor, dt: Tensor, rates: Tensor, b: Tensor, c: Tensor, chunk_size: int, **options: Any) -> Tensor:
    assert options["dt_softplus"] and options.get("z") is None
    steps = torch.nn.functional.softplus(dt + options["dt_bias"])
    inputs, outputs = (part.repeat_interleave(x.shape[2] // b.shape[2], dim=2) for part in (b, c))
    state: Any = 0
    results = []
    for token in range(x.shape[1]):
        step = steps[:, token, :, None, None]
        written = step * x[:, token].unsqueeze(-1) * inputs[:, token].unsqueeze(-2)
        state = (rates[:, None, None] * step).exp() * state + written
        results.append((state * outputs[:, token].unsqueeze(-2)).sum(-1) + options["D"][:, None] * x[:, token])
    return torch.stack(results, dim=1)


def install_stand_ins() -> None:
    root = "mamba_ssm"
    for name in (root, f"{root}.ops", f"{root}.ops.triton"):
        sys.modules[name] = types.ModuleType(name)
    contents = {
        "layernorm_gated": {"RMSNorm": RMSNorm},
        "ssd_combined": {"mamba_chunk_scan_combined": scan, "mamba_split_conv1d_scan_combined": None},
        "selective_state_update": {"selective_state_update": None},
    }
    for name, values in contents.items():
        module = sys.modules[f"{root}.ops.triton.{name}"] = types.ModuleType(name)
        for key, value in values.items():
            setattr(module, key, value or (lambda state_dtype=None: None))
    sys.modules[root].__version__ = "2.3.0"  # type: ignore[attr-defined]


def main() -> None:
    install_stand_ins()
    cpu_backend.install("cuda")
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.ssm import mamba_mixer as theirs
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer import TransformerConfig

    from lt_shared.models.architecture import Mamba
    from lt_train.models.linear import Linears
    from lt_train.models.mixers.mamba import MambaMixer

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1], RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    # Its random states are those of a GPU.
    theirs.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
    sizes = Mamba((0,), mamba_num_heads=8, mamba_head_dim=16, mamba_state_dim=12, mamba_num_groups=2)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=64,
        num_attention_heads=4,
        use_cpu_initialization=True,
        layernorm_epsilon=1e-5,
        add_bias_linear=False,
        mamba_num_heads=8,
        mamba_head_dim=16,
        mamba_state_dim=12,
        mamba_num_groups=2,
        use_mamba_mem_eff_path=False,
    )
    groups = ProcessGroupCollection.use_mpu_process_groups()
    submodules = theirs.MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
    upstream = theirs.MambaMixer(config, submodules, config.hidden_size, layer_number=1, pg_collection=groups)
    ours = MambaMixer(config, sizes, Linears(config))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in upstream.named_parameters():
            parameter.normal_(0.3 if name.endswith("norm.weight") else 0, 0.3)
        weights = {name.replace("conv1d_", "conv1d."): value for name, value in upstream.named_parameters()}
        for name, parameter in ours.named_parameters():
            parameter.copy_(weights.pop(name))
    assert not weights, weights.keys()

    def shards(module: Any) -> dict[str, list[int]]:
        metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
        state = module.sharded_state_dict("mixer.", (), metadata)
        apply_factories(state)
        return {value.key: list(value.global_shape) for value in nested_values(state) if isinstance(value, ShardedTensor)}

    hidden = torch.randn(150, 2, 64)
    outputs = [hidden_states[0] for hidden_states in (upstream(hidden), ours(hidden, None, None))]
    gradients = []
    for output, module in zip(outputs, (upstream, ours), strict=True):
        output.square().sum().backward()
        gradients.append({name.replace("conv1d_", "conv1d."): value.grad for name, value in module.named_parameters()})
    errors = {name: float((gradients[1][name] - value).abs().max() / value.abs().max()) for name, value in gradients[0].items()}
    difference = float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max())
    print(json.dumps({"same_shards": shards(upstream) == shards(ours), "output": difference, "gradients": errors}))


if __name__ == "__main__":
    main()

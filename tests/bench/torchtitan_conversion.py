"""Convert a Llama as TorchTitan's own scripts do: build its model in fp32 on the CPU, load into it, adapt the names, save.

    python torchtitan_conversion.py from_hf|to_hf MODEL SOURCE DESTINATION

The scripts are not in the package; these are the same steps through the package's model, adapter and storage readers, of
scripts/checkpoint_conversion at 0.3.0. MODEL is the config.json of the model in Hugging Face's format.
"""

import json
import sys
from pathlib import Path

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from lt_shared.models import huggingface

# Prepares torchtitan for a machine without a GPU.
sys.path.insert(0, str(Path(__file__).parents[1] / "convert"))
import torchtitan_model
from torchtitan.components.checkpointer.base import ModelWrapper
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter


@torch.inference_mode()
def convert(direction: str, config: Path, source: str, destination: str) -> None:
    architecture = huggingface.from_config(json.loads(config.read_text()), "model")
    configuration = torchtitan_model.configuration(architecture, fused=True)
    with torch.device("cpu"):
        model = configuration.build()
    adapter = Llama3StateDictAdapter(configuration, None)
    state = ModelWrapper(model)._get_state_dict()
    if direction == "from_hf":
        named = adapter.to_hf(state)
        checkpoint.load(named, storage_reader=HuggingFaceStorageReader(source))
        checkpoint.save(adapter.from_hf(named), checkpoint_id=destination)
        return
    checkpoint.load(state, checkpoint_id=source)
    named = adapter.to_hf(state)
    writer = HuggingFaceStorageWriter(
        destination, save_distributed=True, fqn_to_index_mapping=dict.fromkeys(named, 1), enable_consolidation=True
    )
    checkpoint.save(named, storage_writer=writer)


if __name__ == "__main__":
    convert(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])

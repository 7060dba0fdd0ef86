"""The optimizer and its schedule: megatron-core's, with AdamW in one kernel if the layers are fused."""

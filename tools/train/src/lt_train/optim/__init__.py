"""The optimizer and its schedule: megatron-core's, with AdamW in one kernel where the layers are fused."""

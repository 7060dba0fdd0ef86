"""Megatron's formats: torch_dist (`torch_dist`), the legacy files of ranks (`legacy`), and Megatron-FSDP (`fsdp`, read only).

The other modules read and write the parts that several formats share: Megatron's arguments, the optimizer state, the
configuration files of Megatron-Bridge and NeMo.
"""

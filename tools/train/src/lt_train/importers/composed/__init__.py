"""Configurations that other programs turn into those of Megatron-LM and TorchTitan: Primus, nanotron and others."""

"""Configurations that other programs turn into configurations of Megatron-LM and TorchTitan: Primus, nanotron and others."""

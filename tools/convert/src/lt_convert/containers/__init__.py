"""Containers that several checkpoint formats share, without torch: DCP shards, archives of `torch.save`, written pickles."""

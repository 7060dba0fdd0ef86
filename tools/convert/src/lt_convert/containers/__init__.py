"""Containers that several checkpoint formats share, without torch: DCP, archives of `torch.save`, pickles."""

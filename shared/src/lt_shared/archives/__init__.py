"""Archives of `torch.save`, read without torch: uncompressed zip files with one pickle and the bytes of each tensor's storage."""

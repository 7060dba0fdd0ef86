"""The tokenizer beside a checkpoint: found, and written as Hugging Face's files."""

"""A record of a chat file in, the text of the tokenizer's chat template out, and the parts of it that count in the loss."""

"""Facts of tokenizer file formats that several tools read: byte symbols, SentencePiece models, tekken and Llama 3 files."""

"""SentencePiece's BPE: text is cut into segments that merge by themselves, `piece_encoder` encodes them with its tables."""

"""The shape of a decoder: sizes, presets, `config.json` and Megatron arguments. Every tool reads a model's shape here."""

"""The reports of a run: log lines, metrics.jsonl, TensorBoard and Weights & Biases, throughput, profiles."""

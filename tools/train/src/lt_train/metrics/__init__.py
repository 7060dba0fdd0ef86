"""What a run says of itself: log lines, metrics.jsonl, TensorBoard and Weights & Biases, throughput, profiles."""

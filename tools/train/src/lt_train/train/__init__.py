"""The training loop: `trainer` repeats `train_step`, logs, evaluates, saves, and stops for a signal, a limit or an anomaly."""

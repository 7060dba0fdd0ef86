"""A training run: `training_run` puts it together, `trainer` repeats `train_step`, and `hooks` report, evaluate and save."""

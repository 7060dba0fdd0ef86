"""Train a model: `training_run` builds the run, `trainer` repeats `train_step`, and `hooks` report, evaluate and save."""

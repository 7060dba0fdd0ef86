"""New records out of logs that grow, and samples of the machine: what cron runs, with state files that say how far each log
was read.

`scrape` prints records, `state` keeps what alerts and metrics remember; `gpu`, `neuron` and `slurm` ask programs of the
machine.
"""

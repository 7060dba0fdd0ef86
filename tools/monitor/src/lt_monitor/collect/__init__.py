"""Collect new records from growing logs, and samples of the machine. cron runs these commands; state files store how far each
log was read.

`scrape` prints records, and `command_state` stores the state of `alert` and `prom`. `gpu`, `neuron` and `slurm_jobs` call
programs of the machine.
"""

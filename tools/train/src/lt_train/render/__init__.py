"""Job files for Slurm and Kubernetes, printed and never submitted."""

"""Write job files for Slurm and Kubernetes. They are printed and never submitted."""

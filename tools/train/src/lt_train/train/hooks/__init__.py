"""What is done around the steps of a run, a file per concern: each hook is told before and after every step."""

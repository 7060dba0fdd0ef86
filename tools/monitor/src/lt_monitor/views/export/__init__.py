"""Runs written for other programs to show: TensorBoard. `cli` calls it with logs; event files come out."""

"""What `nox -s bench -- train` measures: the contenders, each run in processes of its own, and the floor beneath them."""

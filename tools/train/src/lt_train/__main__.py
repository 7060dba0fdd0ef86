"""`python -m lt_train`, the same command as `lt-train`."""

from lt_train.cli import main

if __name__ == "__main__":
    main()

"""A rank of the measurement of preflight whose exchanges take long when it is rank 2."""

import os

from lt_train.preflight import bandwidth

exchange = bandwidth._measure_exchange


def slowly(*arguments: object) -> float:
    rate = exchange(*arguments)  # type: ignore[arg-type]
    return rate / 20 if "2" in (os.environ["RANK"], str(arguments[0])) else rate


if __name__ == "__main__":
    bandwidth._measure_exchange = slowly  # type: ignore[assignment]
    bandwidth.main()

"""How long a thread keeps the interpreter while another waits, and that the usual time comes back."""

import contextlib
import sys
import threading

from lt_train.checkpoint import thread_switching
from lt_train.checkpoint.thread_switching import SWITCH_SECONDS


def is_short() -> bool:
    return sys.getswitchinterval() < 1.5 * SWITCH_SECONDS


def test_the_usual_time_comes_back_with_the_last_of_several() -> None:
    usual = sys.getswitchinterval()
    first, second = thread_switching.switch_often(), thread_switching.switch_often()
    with first:
        assert is_short()
        second.__enter__()
    assert is_short()
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual


def test_it_comes_back_after_an_error() -> None:
    usual = sys.getswitchinterval()
    with contextlib.suppress(ZeroDivisionError), thread_switching.switch_often():
        raise ZeroDivisionError
    assert sys.getswitchinterval() == usual


def test_it_holds_for_the_time_in_which_any_thread_is_within() -> None:
    usual, left, done = sys.getswitchinterval(), threading.Event(), threading.Event()

    def read() -> None:
        with thread_switching.switch_often():
            left.wait()
        done.set()

    thread = threading.Thread(target=read)
    with thread_switching.switch_often():
        thread.start()
    assert not done.is_set()
    left.set()
    thread.join()
    assert sys.getswitchinterval() == usual

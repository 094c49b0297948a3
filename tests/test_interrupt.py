"""Signals ask; they do not tear down."""

from __future__ import annotations

import os
import signal

import pytest

from pipeline.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_named_in_the_exit_code(number):
    with Interrupt() as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), number)
        assert interrupt.requested
        assert interrupt.exit_code == 128 + number


def test_a_second_interrupt_ends_at_once():
    with Interrupt(), pytest.raises(KeyboardInterrupt):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_given_back_as_they_were_however_often_they_were_taken():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray would, when it starts
        interrupt.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested
    assert signal.getsignal(signal.SIGTERM) is before

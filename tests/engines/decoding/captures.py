"""Ways of recording that need no GPU."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx.experimental.proxy_tensor import make_fx


def run_again(work: Callable[[], None]) -> Callable[[], None]:
    """Nothing is recorded: Python runs again, on the static buffers."""
    return work


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """The operations that ``work`` did, on the tensors that it did them to: no Python of it runs again.

    What a CUDA graph holds fast is held fast here too: shapes, numbers from the host, which tensors are read. Reading a
    value back raises RuntimeError.
    """

    def traced() -> None:
        work()

    program = make_fx(traced)()

    def replay() -> None:
        program()

    return replay

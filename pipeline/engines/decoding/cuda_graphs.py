"""CUDA graphs as a way of recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from pipeline.engines.decoding.recordings import Capture


class CudaGraphs:
    """Implements ``Capture``. Its graphs share one pool of memory: they are replayed one at a time, on one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """See ``Capture``. What makes the host wait for the device is found before a capture, which it would spoil."""
        current = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                work()  # libraries make their workspaces for a stream when it is first used
                with _waiting_refused():
                    work()
            self._stream.synchronize()
            # Other threads of a worker may use CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(current)  # a capture that fails leaves its own stream behind
        current.wait_stream(self._stream)
        return graph.replay


def capture_for(device: torch.device) -> Capture | None:
    """How forwards on ``device`` are recorded; None on a CPU, where nothing would be gained."""
    return CudaGraphs(device) if device.type == "cuda" else None


@contextmanager
def _waiting_refused() -> Iterator[None]:
    """Within it, an operation that makes the host wait for the device raises RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)

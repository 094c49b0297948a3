"""CUDA graphs as a way of recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch

from pipeline.engines.decoding.recordings import Capture


class _Graph:
    """A CUDA graph, alive as long as whoever replays it."""

    def __init__(self) -> None:
        self.captured = torch.cuda.CUDAGraph()

    def replay(self) -> None:
        self.captured.replay()


class CudaGraphs:
    """Implements ``Capture``. Its graphs share one pool of memory: they are replayed one at a time, on one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._alive: WeakSet[_Graph] = WeakSet()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """See ``Capture``. What makes the host wait for the device is found before a capture, which it would spoil."""
        current = torch.cuda.current_stream(self._device)
        graph = _Graph()
        if not self._alive:  # the pool went with the last of its graphs
            self._pool = torch.cuda.graph_pool_handle()
        try:
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                work()  # libraries make their workspaces for a stream when it is first used
                with _waiting_refused():
                    work()
            self._stream.synchronize()
            # Other threads of a worker may use CUDA meanwhile.
            with torch.cuda.graph(
                graph.captured, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                work()
        finally:
            torch.cuda.set_stream(current)  # a capture that fails leaves its own stream behind
        current.wait_stream(self._stream)
        self._alive.add(graph)
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

"""Work on fixed shapes that is recorded once and replayed: on a GPU as CUDA graphs, which cost the host one launch.

A recording leans on memory that stays: inputs are copied into static buffers before a replay, outputs are copied into
static buffers by it. Whatever it reads or writes besides (weights, keys and values) must outlive it: ``clear`` when it
does not.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Body = Callable[..., tuple[Tensor, ...]]
"""Tensors [rows, …] → tensors [rows, …], with nothing read back on the way; doing it again changes nothing."""


class Capture(Protocol):
    """How work is recorded."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what ``work`` does to tensors; what is returned does it again. Raises RuntimeError if it cannot be."""


@dataclass
class Pauses:
    """``seconds`` so far that went into recording: no serving loop spends them, so that no clock counts them."""

    seconds: float = 0.0


@dataclass(frozen=True)
class _Recording:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    replay: Callable[[], None]


class Recordings:
    """What was recorded of one model. Recording happens on demand, and its time is added to ``pauses``.

    All recordings share their output buffers, since only one is replayed at a time: an output holds until the next
    ``run``. Where something cannot be recorded, ``failure`` says why and nothing more is recorded or replayed.
    """

    def __init__(self, capture: Capture, device: torch.device, pauses: Pauses) -> None:
        self._capture = capture
        self._device = device
        self._pauses = pauses
        self._made: dict[Hashable, _Recording] = {}
        self._stores: dict[tuple[int, torch.dtype], Tensor] = {}
        self.failure = ""

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        """Forget everything: what recordings lean on is about to go."""
        self._made.clear()
        self._stores.clear()

    def run(self, key: Hashable, rows: int, inputs: Sequence[Tensor], body: Body) -> tuple[Tensor, ...] | None:
        """``body`` of ``inputs`` [B, …] padded with zeros to ``rows``: its outputs, cut to B; None after a failure.

        ``key`` says all that ``body`` depends on but its inputs. Inputs may be on the host (pinned, to be quick).
        """
        if self.failure:
            return None
        whole = (key, rows, tuple((tensor.shape[1:], tensor.dtype) for tensor in inputs))
        recording = self._made.get(whole)
        if recording is None:
            recording = self._record(rows, inputs, body)
            if recording is None:
                return None
            self._made[whole] = recording
        _fill(recording.inputs, inputs)
        recording.replay()
        return tuple(output[: len(inputs[0])] for output in recording.outputs)

    def _record(self, rows: int, inputs: Sequence[Tensor], body: Body) -> _Recording | None:
        self._wait()
        start = time.perf_counter()
        try:
            return self._recorded(rows, inputs, body)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.failure = next(iter(str(error).strip().splitlines()), type(error).__name__)
            self.clear()
            warnings.warn(f"decoding without CUDA graphs: {self.failure}", RuntimeWarning, stacklevel=2)
            return None
        finally:
            self._wait()
            self._pauses.seconds += time.perf_counter() - start

    def _recorded(self, rows: int, inputs: Sequence[Tensor], body: Body) -> _Recording:
        static = tuple(
            torch.zeros((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=self._device) for tensor in inputs
        )
        _fill(static, inputs)
        # Done once as it is: what a first call allocates or chooses is then there, and the outputs' shapes are known.
        outputs = tuple(self._output(index, like) for index, like in enumerate(body(*static)))

        def work() -> None:
            for place, output in zip(outputs, body(*static), strict=True):
                place.copy_(output)

        return _Recording(static, outputs, self._capture(work))

    def _output(self, index: int, like: Tensor) -> Tensor:
        """A place for output ``index``, shaped ``like`` one. Recordings that have the smaller store keep it."""
        size = like.numel()
        store = self._stores.get((index, like.dtype))
        if store is None or store.numel() < size:
            store = torch.empty(1 << (size - 1).bit_length(), dtype=like.dtype, device=self._device)
            self._stores[index, like.dtype] = store
        return store[:size].view(like.shape)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _fill(static: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    for place, tensor in zip(static, inputs, strict=True):
        rows = len(tensor)
        place[:rows].copy_(tensor, non_blocking=True)
        if rows < len(place):
            place[rows:].zero_()

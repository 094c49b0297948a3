"""Numbers from the host to the device without making the host wait for the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_host(values: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """``values`` as a host tensor that ``device`` can copy from by itself: pinned, where that is CUDA.

    A copy from memory that is not pinned waits until the device has done all its work so far. The pinned memory is
    PyTorch's: it is used again only once the copies from it are done.
    """
    tensor = torch.from_numpy(values)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(values: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """``values`` on ``device``; on a CPU the same memory."""
    return on_host(values, device).to(device, non_blocking=True)

"""What a device is called, and what drives it."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def accelerator_name(device: torch.device) -> str:
    """The GPU's name, or the processor's where the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def driver_version(device: torch.device) -> str:
    """The version of the GPU's kernel driver, where the system tells it; "" on a CPU."""
    version = Path("/proc/driver/nvidia/version")
    if device.type != "cuda" or not version.is_file():
        return ""
    return next((word for word in version.read_text().split() if word[:1].isdigit() and "." in word), "")

"""What a wrong configuration is told."""

from __future__ import annotations

import pytest

from pipeline.config import load_settings
from pipeline.records.failure import InputError


def refusal(*overrides: str, config_name: str = "sweep") -> str:
    with pytest.raises(InputError) as raised:
        load_settings(overrides, config_name)
    message = str(raised.value)
    assert "\n" not in message
    return message

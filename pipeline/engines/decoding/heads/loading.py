"""Draft heads made ready to run beside the target they were trained on."""

from __future__ import annotations

from pipeline.engines.decoding.heads.eagle3 import Eagle3Head
from pipeline.engines.decoding.heads.eagle3_loading import load_eagle3
from pipeline.engines.decoding.heads.files import find_head
from pipeline.engines.decoding.heads.medusa import MedusaHeads, load_medusa
from pipeline.engines.decoding.loading import LoadedModel
from pipeline.records.target import Head, Medusa, Target

LoadedHead = MedusaHeads | Eagle3Head


def load_head(draft: Head, target: LoadedModel, target_spec: Target, device: str) -> LoadedHead:
    """Load ``draft`` for ``target``; ``target_spec`` says what loading may trust. Raises InputError."""
    files = find_head(draft, target_spec.allow_pickle)
    if isinstance(draft, Medusa):
        return load_medusa(files, target, device)
    return load_eagle3(files, target, device)

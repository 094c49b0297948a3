"""Whether sampled proposals leave the target's distribution as it is, on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import torch
from transformers import LlamaConfig, PreTrainedModel

from pipeline.benchmarks.exact import count_sequences, joint_distribution, p_value
from pipeline.benchmarks.gpu.decoder import Decoder
from pipeline.benchmarks.gpu.shapes import build
from pipeline.benchmarks.lossless import CAUGHT, PLACES, SAME
from pipeline.benchmarks.mutants import UNTRANSFORMED, broken, shown_by
from pipeline.benchmarks.rows import Row, alone
from pipeline.benchmarks.tiny import VOCABULARY
from pipeline.benchmarks.tiny_writer import GAMMA, PROMPT, TOKENS
from pipeline.engines.contract import Request
from pipeline.engines.decoding.proposers.draft_model import DraftModelProposer
from pipeline.records.cell import Sampling

SLOTS = 6
T1 = Sampling(name="t1", temperature=1.0)
TOP_P = Sampling(name="t1_p85", temperature=1.0, top_p=0.85)


def distributions(decoder: Decoder, samples: int) -> Iterator[Row]:
    """p of a chi-square against exact enumeration, plain top-p and by a draft; and of an engine that is wrong."""
    target, draft = _tiny(decoder.device, layers=2, seed=0), _tiny(decoder.device, layers=1, seed=5)
    reference = copy.deepcopy(target).to("cpu")
    cached, drafting = decoder.cached(target), decoder.cached(draft)
    arms = (
        ("chi_square_draft_model", T1, ""),
        ("chi_square_top_p", TOP_P, ""),
        ("chi_square_mutant", shown_by(UNTRANSFORMED), UNTRANSFORMED),
    )
    for name, sampling, mutant in arms:
        columns = len(PROMPT) + TOKENS + GAMMA + 1
        proposer = DraftModelProposer(drafting, SLOTS, columns, VOCABULARY, sampling)
        with broken(mutant, sampling) if mutant else nullcontext():
            trace = decoder.run(cached, _requests(samples), SLOTS, columns, proposer, GAMMA, sampling)
        texts = np.array([request.output for request in trace.requests])
        exact = joint_distribution(reference, PROMPT, TOKENS, sampling, VOCABULARY)
        least = min(p_value(count_sequences(texts, VOCABULARY), exact, places) for places in PLACES)
        yield alone(name, "p", "less" if mutant else "more", [least], CAUGHT if mutant else SAME)


def _requests(samples: int) -> list[Request]:
    return [
        Request(request_id=str(seed), prompt_id="p", tokens=PROMPT, max_new_tokens=TOKENS, seed=seed, ignore_eos=True)
        for seed in range(samples)
    ]


def _tiny(device: torch.device, layers: int, seed: int) -> PreTrainedModel:
    """Weights large enough that its choices differ by context, drawn on the CPU: the same on every device."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    return build(config, torch.float32, torch.device("cpu"), seed).to(device)

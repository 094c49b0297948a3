"""What the rounds of these tests are made of."""

from __future__ import annotations

from pipeline.engines.machine import Machine
from pipeline.records.cell import Sampling
from pipeline.records.target import Candidate, DraftModel, Ngram

GREEDY = Sampling(name="greedy")
SAMPLED = Sampling(name="t07", temperature=0.7)
NGRAM = Ngram(name="ngram")
SMALL = DraftModel(name="small", source="small")
QUIET = Machine(noise=0.0, alpha_spread=0.0)
"""No noise, and every prompt alike: what comes out can be computed by hand."""

OFF = Candidate(draft=None, gamma=0)

"""The candidates of one cell, and how Optuna's parameters name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from pipeline.records.settings import DraftChoice
from pipeline.records.target import Candidate

Parameters = Mapping[str, str | int]


class CandidateSpace:
    """draft × γ of one cell. Drafts stand sorted by name, so that their order in a file never reorders a category."""

    def __init__(self, choices: Sequence[DraftChoice]) -> None:
        ordered = sorted(choices, key=lambda choice: choice.draft.name)
        self.candidates: tuple[Candidate, ...] = tuple(
            Candidate(draft=choice.draft, gamma=gamma) for choice in ordered for gamma in sorted(set(choice.gammas))
        )
        self._by_name = {(c.draft.name, c.gamma): c for c in self.candidates if c.draft is not None}
        self.max_gamma = max(candidate.gamma for candidate in self.candidates)
        self.distributions: dict[str, BaseDistribution] = {
            "draft": CategoricalDistribution([choice.draft.name for choice in ordered]),
            "gamma": IntDistribution(1, self.max_gamma),
        }

    def parameters(self, candidate: Candidate) -> dict[str, str | int]:
        """What Optuna stores for ``candidate``."""
        assert candidate.draft is not None
        return {"draft": candidate.draft.name, "gamma": candidate.gamma}

    def exact(self, parameters: Parameters) -> Candidate | None:
        """The candidate that ``parameters`` name, None if this draft is not tried at that γ."""
        return self._by_name.get((str(parameters["draft"]), int(parameters["gamma"])))

    def nearest(self, parameters: Parameters, open_candidates: Sequence[Candidate]) -> Candidate:
        """The open candidate nearest in γ to ``parameters``, of the same draft if one is open."""

        def distance(candidate: Candidate) -> tuple[bool, int, int]:
            assert candidate.draft is not None
            gap = abs(candidate.gamma - int(parameters["gamma"]))
            return candidate.draft.name != parameters["draft"], gap, candidate.gamma

        return min(open_candidates, key=distance)

"""policy.json holds every decision with its draft, and is read back as it was written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.policy.document import fingerprint, read_policy, write_policy
from pipeline.records.cell import CellKey
from pipeline.records.decision import Decision
from pipeline.records.failure import InputError
from pipeline.records.settings import Constraints
from pipeline.records.target import Draft, DraftModel, Ngram

CELL = CellKey(target="smollm2", workload="chat", sampling="greedy", concurrency=1, accelerator="cpu")
ON = Decision(
    cell=CELL,
    status="on",
    speculate=True,
    draft=Ngram(name="ngram"),
    gamma=4,
    speedup=1.42,
    speedup_low=1.31,
    speedup_high=1.53,
    acceptance_rate=0.61,
    emitted_per_verification=2.1,
    tau0_ms=10.0,
    tau_spec_ms=14.8,
    reason="measured 1.42×",
    measurement="m1",
)
FAILED = replace(
    ON,
    cell=replace(CELL, concurrency=8),
    status="failed",
    speculate=False,
    draft=None,
    gamma=0,
    speedup=None,
    measurement=None,
)


LIMITS = Constraints(tpot_ms_p99=50.0)


def write(path, decisions) -> dict:
    created = "2026-01-01T00:00:00+00:00"
    write_policy(path, "demo-0000000000", fingerprint(decisions), decisions, created, 0.03, LIMITS)
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_document_has_exactly_the_declared_fields(tmp_path) -> None:
    document = write(tmp_path / "policy.json", [ON, FAILED])
    assert list(document) == ["schema_version", "sweep", "created", "fingerprint", "margin", "constraints", "decisions"]
    assert document["schema_version"] == 1
    assert (document["margin"], document["constraints"]["tpot_ms_p99"]) == (0.03, 50.0)
    policy = read_policy(tmp_path / "policy.json")
    assert (policy.margin, policy.constraints) == (0.03, LIMITS)
    assert list(document["decisions"][0]) == [
        "cell",
        "status",
        "speculate",
        "draft",
        "gamma",
        "speedup",
        "speedup_low",
        "speedup_high",
        "acceptance_rate",
        "emitted_per_verification",
        "tau0_ms",
        "tau_spec_ms",
        "reason",
        "measurement",
        "why",
    ]
    assert list(document["decisions"][0]["cell"]) == ["target", "workload", "sampling", "concurrency", "accelerator"]
    assert document["decisions"][1]["draft"] is None


def test_a_draft_carries_all_parameters_and_null_where_its_method_has_none(tmp_path) -> None:
    model = DraftModel(name="small", source="org/small", revision="abc")
    document = write(tmp_path / "policy.json", [ON, replace(ON, draft=model)])
    ngram, small = (decision["draft"] for decision in document["decisions"])
    assert ngram == {
        "name": "ngram",
        "method": "ngram",
        "source": None,
        "revision": None,
        "min_n": 1,
        "max_n": 3,
        "match": "first",
    }
    assert (small["source"], small["revision"], small["draft_sampling"]) == ("org/small", "abc", "probabilistic")


@given(st.lists(st.sampled_from(get_args(Draft)).flatmap(st.builds), max_size=4))
def test_every_draft_comes_back_as_it_was_written(tmp_path_factory, drafts) -> None:
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    decisions = tuple(replace(ON, draft=draft) for draft in drafts)
    write(path, decisions)
    assert read_policy(path).decisions == decisions


def test_a_policy_without_decisions_is_a_policy(tmp_path) -> None:
    write(tmp_path / "policy.json", [])
    assert read_policy(tmp_path / "policy.json").decisions == ()


def test_a_policy_from_before_speedups_were_explained_is_read(tmp_path) -> None:
    document = write(tmp_path / "policy.json", [ON])
    del document["decisions"][0]["why"]
    (tmp_path / "policy.json").write_text(json.dumps(document))
    assert read_policy(tmp_path / "policy.json").decisions == (ON,)


def test_a_number_that_is_not_finite_is_null(tmp_path) -> None:
    assert write(tmp_path / "policy.json", [replace(ON, speedup=math.nan)])["decisions"][0]["speedup"] is None


def test_the_fingerprint_follows_content_and_versions_only() -> None:
    assert fingerprint([ON, FAILED]) == fingerprint([FAILED, ON])
    assert fingerprint([ON]) != fingerprint([replace(ON, gamma=5)])
    assert fingerprint([ON], {"torch": "1"}) != fingerprint([ON], {"torch": "2"})
    assert fingerprint([]) != fingerprint([ON])


def test_a_policy_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch) -> None:
    path = tmp_path / "policy.json"
    write(path, [ON])
    before = path.read_bytes()

    def torn(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("pathlib.Path.replace", torn)
    with pytest.raises(OSError, match="Input/output"):
        write(path, [FAILED])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.update(schema_version=2), "schema_version"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d["decisions"][0].update(gamma="four"), "decisions.0.gamma"),
        (lambda d: d["decisions"][0].pop("reason"), "decisions.0.reason"),
        (lambda d: d["decisions"][0]["draft"].update(method="oracle"), "decisions.0.draft"),
        (lambda d: d["decisions"][0].update(speculate=False), "decisions.0.speculate"),
        (lambda d: d["decisions"][0].update(draft=None), "decisions.0"),
        (lambda d: d["decisions"][0].update(gamma=0), "decisions.0"),
        (lambda d: d.update(decisions={}), "decisions"),
    ],
)
def test_a_wrong_key_is_named_with_its_file_in_one_line(tmp_path, change, named) -> None:
    path = tmp_path / "policy.json"
    document = write(path, [ON])
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_policy(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_what_is_no_policy_is_a_user_error(tmp_path, content) -> None:
    path = tmp_path / "policy.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"policy\.json"):
        read_policy(path)
    with pytest.raises(InputError, match=r"missing\.json: cannot be read"):
        read_policy(tmp_path / "missing.json")

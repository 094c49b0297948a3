"""What is recorded is done again on whatever inputs come, and what cannot be recorded is done as it stands."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from captures import recorded, run_again
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.engines.decoding.buckets import LEAST_COLUMNS, column_bucket, row_bucket
from pipeline.engines.decoding.recordings import Capture, Pauses, Recordings

CPU = torch.device("cpu")
captures = pytest.mark.parametrize("capture", [run_again, recorded], ids=lambda capture: capture.__name__)


def double(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * x + y, y - 1


def counting(body: Callable[..., tuple[Tensor, ...]]) -> tuple[Callable[..., tuple[Tensor, ...]], list[int]]:
    calls: list[int] = []

    def counted(*inputs: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(inputs[0]))
        return body(*inputs)

    return counted, calls


@captures
def test_a_replay_takes_the_new_inputs(capture: Capture) -> None:
    recordings = Recordings(capture, CPU, Pauses())
    for start in range(3):
        x, y = torch.arange(start, start + 3), torch.arange(3) * 10
        outputs = recordings.run("key", 4, (x, y), double)
        assert outputs is not None
        assert [output.tolist() for output in outputs] == [(2 * x + y).tolist(), (y - 1).tolist()]
    assert len(recordings) == 1


def test_what_is_recorded_runs_no_python_again() -> None:
    body, calls = counting(double)
    recordings = Recordings(recorded, CPU, Pauses())
    for _ in range(5):
        recordings.run("key", 4, (torch.ones(2), torch.ones(2)), body)
    assert calls == [4, 4]  # to learn the shapes, and to record


def test_rows_are_padded_with_zeros_whatever_stood_there() -> None:
    recordings = Recordings(recorded, CPU, Pauses())
    seen = torch.zeros(4)

    def body(x: Tensor) -> tuple[Tensor]:
        seen.copy_(x)
        return (x,)

    recordings.run("key", 4, (torch.ones(4),), body)
    (output,) = recordings.run("key", 4, (torch.full((1,), 5.0),), body) or ()
    assert output.tolist() == [5.0]
    assert seen.tolist() == [5.0, 0.0, 0.0, 0.0]


def test_shapes_and_keys_are_recorded_apart() -> None:
    recordings = Recordings(recorded, CPU, Pauses())
    for key, rows, width in (("a", 2, 1), ("a", 2, 3), ("a", 4, 1), ("b", 2, 1), ("a", 2, 1)):
        add = 1 if key == "a" else 2
        outputs = recordings.run(key, rows, (torch.zeros(2, width),), lambda x, add=add: (x + add,))
        assert outputs is not None
        assert outputs[0].tolist() == [[float(add)] * width] * 2
    assert len(recordings) == 4


def test_a_larger_output_leaves_the_smaller_ones_right() -> None:
    recordings = Recordings(recorded, CPU, Pauses())
    for size in (3, 100, 3, 7, 200, 7):
        (output,) = recordings.run("key", size, (torch.arange(size),), lambda x: (x + 1,)) or ()
        assert output.tolist() == list(range(1, size + 1))


def test_what_cannot_be_recorded_is_said_once_and_never_tried_again() -> None:
    recordings = Recordings(recorded, CPU, Pauses())
    assert recordings.run("fine", 1, (torch.ones(1),), lambda x: (x,)) is not None

    def reads_back(x: Tensor) -> tuple[Tensor]:
        return (x * float(x.sum()),)

    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        assert recordings.run("bad", 1, (torch.ones(1),), reads_back) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recordings.run("bad", 1, (torch.ones(1),), reads_back) is None
        assert recordings.run("fine", 1, (torch.ones(1),), lambda x: (x,)) is None
    assert recordings.failure
    assert len(recordings) == 0


def test_recording_takes_no_time_of_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pipeline.engines.decoding.recordings.time.perf_counter", lambda: now[0])

    def slow(work: Callable[[], None]) -> Callable[[], None]:
        now[0] += 3.0
        return work

    pauses = Pauses()
    recordings = Recordings(slow, CPU, pauses)
    for _ in range(3):
        recordings.run("key", 1, (torch.ones(1),), lambda x: (x,))
    assert pauses.seconds == 3.0


def test_out_of_memory_is_no_reason_to_go_on_without() -> None:
    def full(work: Callable[[], None]) -> Callable[[], None]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Recordings(full, CPU, Pauses()).run("key", 1, (torch.ones(1),), lambda x: (x,))


@given(slots=st.integers(1, 300), data=st.data())
def test_a_bucket_of_rows_holds_them_and_never_more_than_there_are(slots: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, slots))
    bucket = row_bucket(rows, slots)
    assert rows <= bucket <= slots
    assert bucket < 2 * rows
    assert bucket == slots or bucket & (bucket - 1) == 0


@given(most=st.integers(64, 1 << 17), data=st.data())
def test_a_bucket_of_columns_holds_them_and_wastes_at_most_half(most: int, data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, most))
    bucket = column_bucket(columns, most)
    assert columns <= bucket <= most
    assert bucket <= max(LEAST_COLUMNS, 1.5 * columns)


def test_buckets_of_columns_are_few() -> None:
    assert sorted({column_bucket(columns, 4096) for columns in range(1, 4097)}) == [
        256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    ]  # fmt: skip

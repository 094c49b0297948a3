"""Packed linear layers: the same product, only where it is faster."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipeline.engines.decoding import packing
from pipeline.engines.decoding.packing import PackedLinear, pack

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@pytest.mark.parametrize("fewest", [1, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 1), (3, 4), (2, 64)])
def test_a_packed_product_is_the_plain_one(fewest, bias, shape):
    torch.manual_seed(0)
    linear = nn.Linear(48, 96, bias=bias)
    x = torch.randn(*shape, 48)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear, fewest)(x), linear(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 3), (3, 1), (2, 2), (4, 1), (1, 5), (3, 4)])
def test_products_of_fewer_rows_than_it_is_packed_for_are_the_layers_own(monkeypatch, shape):
    done = []
    monkeypatch.setattr(packing, "_packed_product", lambda x, w, b: done.append(x))
    packed = PackedLinear(nn.Linear(8, 8), 4)
    packed(torch.ones(*shape, 8))
    assert bool(done) == (shape[0] * shape[1] >= 4)


def test_a_layer_packed_for_every_product_gives_its_weight_up():
    assert list(PackedLinear(nn.Linear(8, 8, bias=False)).parameters()) == []
    assert [p.shape for p in PackedLinear(nn.Linear(8, 8, bias=False), 2).parameters()] == [(8, 8)]


def test_a_rows_product_does_not_depend_on_its_neighbours():
    torch.manual_seed(0)
    packed = PackedLinear(nn.Linear(64, 256))
    x = torch.randn(1, 9, 64)
    with torch.inference_mode():
        alone = torch.cat([packed(x[:, i : i + 1]) for i in range(9)], dim=1)
        torch.testing.assert_close(packed(x), alone, rtol=1e-5, atol=1e-5)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.embedding(ids)))


def test_every_layer_that_gains_is_replaced_and_a_tied_embedding_keeps_its_table(monkeypatch):
    monkeypatch.setattr(packing, "_fewest_rows", lambda linears, other, *, both: 1)
    model, ids = Tied(), torch.arange(8)[None]
    with torch.inference_mode():
        before = model(ids)
        pack(model)
        assert isinstance(model.head, PackedLinear)
        assert isinstance(model.inner[0], PackedLinear)
        torch.testing.assert_close(model(ids), before, rtol=1e-5, atol=1e-5)


def test_a_layer_that_does_not_gain_is_left_alone(monkeypatch):
    monkeypatch.setattr(
        packing, "_fewest_rows", lambda linears, other, *, both: None if linears[0].out_features == 16 else 1
    )
    model = Tied()
    pack(model)
    assert type(model.inner[0]) is nn.Linear
    assert isinstance(model.head, PackedLinear)


def test_each_shape_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(
        packing, "_fewest_rows", lambda linears, other, *, both: measured.append([len(linears), other.nbytes])
    )
    pack(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 4)))
    assert measured == [[4, 4 * (4 * 64 + 32)], [1, 4 * (4 * 64 + 32)]], "beside all that passes through the caches"


def test_products_are_timed_with_weights_that_other_work_has_driven_out(monkeypatch):
    done = []
    other = torch.zeros(1)
    monkeypatch.setattr(packing, "_packed_product", lambda x, w, b: done.append(int(other)) or x)
    packing._fewest_rows([nn.Linear(8, 8)] * 2, other, both=True)
    assert done[:2] == [5, 5], "after five timings of the plain product, once unseen for both layers"
    assert len(set(done)) == len(packing.PROBED_ROWS) * (1 + packing._REPEATS), "and then before every timing"


TIMES = st.lists(st.floats(0.1, 10.0), min_size=len(packing.PROBED_ROWS), max_size=len(packing.PROBED_ROWS))


@given(plain=TIMES, packed=TIMES, both=st.booleans())
def test_what_is_chosen_loses_no_more_than_noise_to_the_best_that_memory_allows(plain, packed, both):
    fewest = packing._chosen(plain, packed, both=both)
    at = len(plain) if fewest is None else packing.PROBED_ROWS.index(fewest)
    best = [min(pair) for pair in zip(plain, packed, strict=True)]
    taken = [plain[:i] + packed[i:] for i in range(len(plain) + 1)]
    lost = [sum(t / b - 1 for t, b in zip(each, best, strict=True)) for each in taken]
    allowed = [i for i in range(len(lost)) if both or (i == 0 and packed[0] <= 1.05 * plain[0]) or i == len(plain)]
    assert at in allowed
    assert lost[at] <= min(lost[i] for i in allowed) + packing.NOISE + 1e-9
    if fewest == 1:
        assert packed[0] <= 1.05 * plain[0] + 1e-9, "plain steps would pay for verifications"


ALWAYS, NEVER, FROM_4 = [1.0] * 8, [3.0] * 8, [3.0] * 3 + [1.0] * 5


@pytest.mark.parametrize(
    ("packed", "both", "fewest"),
    [
        (ALWAYS, True, 1),
        (NEVER, True, None),
        (FROM_4, True, 4),
        (FROM_4, False, None),
        ([2.08] + [1.0] * 7, True, 1),
        ([2.2] + [1.0] * 7, True, 2),
        ([2.2] + [1.0] * 7, False, None),
        ([3.0] * 7 + [1.94], True, None),
    ],
    ids=[
        "always",
        "never",
        "from 4 rows on",
        "no room for both",
        "one copy does",
        "plain steps would pay",
        "plain steps would pay, no room",
        "too little for a second copy",
    ],
)
def test_a_second_copy_is_kept_only_where_it_gains(packed, both, fewest):
    assert packing._chosen([2.0] * 8, packed, both=both) == fewest


@pytest.mark.parametrize("both", [True, False])
def test_where_a_clock_is_too_coarse_to_tell_nothing_is_packed(both):
    assert packing._chosen([0.0] * 8, [0.0] * 8, both=both) is None


@pytest.mark.parametrize(
    ("tied", "chosen", "asked", "replaced"),
    [
        (False, [4, 4, None], [True, True, False], [True, True, False]),
        (False, [1, 4, 4], [True, True, True], [True, True, True]),
        (True, [4, 4, 4], [True, True, True], [True, True, True]),
    ],
    ids=["two shapes fill what is free", "a single copy takes nothing", "nor does that of a tied weight"],
)
def test_both_weights_are_kept_only_within_the_share_of_memory(monkeypatch, tied, chosen, asked, replaced):
    said: list[bool] = []
    monkeypatch.setattr(packing, "free_bytes", lambda: 4 * 4 * (64 + 32))

    def fewest(linears, other, *, both):
        said.append(both)
        return chosen[len(said) - 1]

    monkeypatch.setattr(packing, "_fewest_rows", fewest)
    layers = [nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 2)]
    model = nn.Sequential(*layers, *([nn.Embedding(8, 8)] if tied else []))
    if tied:
        model[3].weight = layers[0].weight
    pack(model)
    assert said == asked
    assert [isinstance(layer, PackedLinear) for layer in list(model)[:3]] == replaced


def test_a_dtype_that_cannot_be_packed_is_left_alone():
    model = nn.Sequential(nn.Linear(8, 8).double())
    pack(model)
    assert type(model[0]) is nn.Linear

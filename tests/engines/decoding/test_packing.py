"""Packed linear layers: the same product, only where it is faster."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeline.engines.decoding import packing
from pipeline.engines.decoding.packing import PackedLinear, pack

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 4), (2, 64)])
def test_a_packed_product_is_the_plain_one(bias, shape):
    torch.manual_seed(0)
    linear = nn.Linear(48, 96, bias=bias)
    x = torch.randn(*shape, 48)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), rtol=1e-5, atol=1e-5)


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
    monkeypatch.setattr(packing, "_gains", lambda linears, other: True)
    model, ids = Tied(), torch.arange(8)[None]
    with torch.inference_mode():
        before = model(ids)
        pack(model)
        assert isinstance(model.head, PackedLinear)
        assert isinstance(model.inner[0], PackedLinear)
        torch.testing.assert_close(model(ids), before, rtol=1e-5, atol=1e-5)


def test_a_layer_that_does_not_gain_is_left_alone(monkeypatch):
    monkeypatch.setattr(packing, "_gains", lambda linears, other: linears[0].in_features != linears[0].out_features)
    model = Tied()
    pack(model)
    assert type(model.inner[0]) is nn.Linear
    assert isinstance(model.head, PackedLinear)


def test_each_shape_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(
        packing, "_gains", lambda linears, other: measured.append([len(linears), other.nbytes]) or False
    )
    pack(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 4)))
    assert measured == [[4, 4 * (4 * 64 + 32)], [1, 4 * (4 * 64 + 32)]], "beside all that passes through the caches"


def test_products_are_timed_with_weights_that_other_work_has_driven_out(monkeypatch):
    done = []
    other = torch.zeros(1)
    monkeypatch.setattr(packing, "_packed_product", lambda x, w, b: done.append(int(other)) or x)
    assert packing._gains([nn.Linear(8, 8)] * 2, other) in (True, False)
    assert done[:2] == [5, 5], "after five timings of the plain product, once unseen for both layers"
    assert len(set(done)) == len(packing.PROBED_ROWS) * (1 + packing._REPEATS), "and then before every timing"


def test_a_dtype_that_cannot_be_packed_is_left_alone():
    model = nn.Sequential(nn.Linear(8, 8).double())
    pack(model)
    assert type(model[0]) is nn.Linear

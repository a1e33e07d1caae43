"""Search with matrix products in half precision, against fp32, and log p from tiles."""

import copy

import numpy as np
import pytest
import torch

from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.kernels import packed_linear
from gpst.kernels.packed_linear import PackedLinear, Product
from gpst.kernels.product import onednn_is_faster
from gpst.model.gpst import GPSTModel
from gpst.search import vocabulary
from gpst.search.parse import search_text
from gpst.search.precision import multiply_in
from gpst.search.vocabulary import TokenScores, Vocabulary


def small_model(vocab_size: int = 50) -> GPSTModel:
    torch.manual_seed(0)
    return GPSTModel(
        GPSTConfig(
            vocab_size, 0, max_context_tokens=32, hidden_dim=64, num_heads=4, ffn_dim=128,
            num_type_layers=2, num_token_layers=2,
            composition=CompositionConfig(dim=16, num_heads=2, ffn_dim=32, num_layers=1,
                                          score_dim=8),
            parser=ParserConfig(dim=8, num_heads=2, ffn_dim=16, num_layers=1),
        )
    ).eval()  # fmt: skip


@pytest.mark.parametrize("size", [5, 1024, 4096, 4100, 10_000])
def test_tiles_are_the_vocabulary(size):
    assert sum(vocabulary._sizes(size)) == size
    assert max(vocabulary._sizes(size)) <= 4096


@pytest.mark.parametrize("logits", [1, 3 * 4096, 1 << 26])
def test_tiles_sum_to_the_softmax(logits, monkeypatch):
    monkeypatch.setattr(vocabulary, "_LOGITS", logits)  # rows: one by one, in threes, together
    model = small_model(10_000)  # two whole tiles and a part
    features, tokens = torch.randn(7, 64), torch.randint(0, 10_000, (7,))
    tokens[:3] = torch.tensor([0, 4096, 9999])
    scores = TokenScores(Vocabulary(model), features, tokens)
    found = scores.exact(torch.arange(7))
    expected = (features.double() @ model.embedding.weight.double().T).log_softmax(1)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected[range(7), tokens].tolist(), abs=1e-5)
    assert scores.exact(torch.arange(0)).shape == (0,)


def test_bf16_gives_nearly_the_probabilities_of_fp32():
    rng = np.random.default_rng(0)
    contexts = [[rng.integers(0, 50, n).tolist()] for n in (5, 9, 14)]
    model = small_model()
    before = search_text(model, contexts, beam=300)
    names = set(model.state_dict())
    half = multiply_in(model, "bf16")
    assert set(half.state_dict()) == names
    products = [m for m in half.generator.type_layers.modules() if isinstance(m, PackedLinear)]
    assert len(products) == 2 * 4
    assert {m.weight.dtype for m in products} == {torch.bfloat16}
    assert half.generator.type_head.out.weight.dtype == torch.float32
    after = search_text(half, contexts, beam=300)
    for one, other in zip(before, after, strict=True):
        assert one.prefix_log_p is not None
        assert other.prefix_log_p is not None
        gap = np.abs(one.prefix_log_p - other.prefix_log_p)
        assert gap.max() < 0.02 * len(gap)
        assert gap.max() > 0  # it is another precision


def test_packed_products_are_those_of_the_weights_they_have_now(monkeypatch):
    monkeypatch.setattr(packed_linear, "onednn_is_faster", torch.backends.mkldnn.is_available)
    torch.manual_seed(2)
    layer = torch.nn.Linear(64, 5000)
    packed, x = PackedLinear(layer), torch.randn(3, 5, 64)
    assert packed.weight is layer.weight
    for _ in range(2):
        with torch.no_grad():
            assert torch.allclose(packed(x), layer(x), atol=1e-5)
            assert packed._product._packed is not None
            assert packed(x[:0]).shape == (0, 5, 5000)
            assert torch.allclose(copy.deepcopy(packed)(x), layer(x), atol=1e-5)
            layer.weight.mul_(-2.0)  # as an optimizer or a loaded checkpoint would
    packed(x).sum().backward()  # with gradients it is a plain layer
    assert layer.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cpu_without_avx512_packs_nothing(monkeypatch, dtype):
    """oneDNN refuses to pack bf16 there."""
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    onednn_is_faster.cache_clear()
    torch.manual_seed(2)
    layer = torch.nn.Linear(64, 5000)
    packed, x = PackedLinear(layer, dtype), torch.randn(3, 64)
    with torch.no_grad():
        assert torch.allclose(packed(x), layer(x), atol=1e-5 if dtype == torch.float32 else 0.05)
    assert packed._product._packed is None
    onednn_is_faster.cache_clear()


def test_a_prepared_model_searches_as_before():
    rng = np.random.default_rng(1)
    contexts = [[rng.integers(0, 5000, n).tolist()] for n in (5, 9, 14)]
    model = small_model(5000)
    before = search_text(model, contexts, beam=20)
    prepared = multiply_in(model, "fp32")
    assert prepared is model
    kinds = [type(m) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert kinds.count(PackedLinear) == 2 * 4 + 2 * 4 + 2
    for one, other in zip(before, search_text(model, contexts, beam=20), strict=True):
        assert one.parses[0].trees == other.parses[0].trees
        assert one.prefix_log_p == pytest.approx(other.prefix_log_p, abs=1e-5, rel=1e-6)
    assert all(isinstance(product, Product) for product in model.search_products)
    double = multiply_in(small_model().double(), "fp32")
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    assert search_text(double, [[[1, 2, 3]]])[0].log_p < 0


def test_another_dtype_is_named():
    with pytest.raises(ValueError, match="dtype: 'fp8' is not allowed; it must be fp32 or bf16"):
        multiply_in(small_model(), "fp8")

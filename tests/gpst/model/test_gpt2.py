"""The GPT-2 baseline in its best form: transformers' values and gradients, and no waiting."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2LMHeadModel

import gpst.model.gpt2
from gpst.batch import ContextBatch
from gpst.config import GPT2Config
from gpst.model.gpt2 import GPT2Baseline
from gpst.model.losses import total_loss

SIZES = {
    "vocab_size": 50, "bos_token_id": 1, "max_context_tokens": 40, "hidden_dim": 64,
    "num_heads": 4, "ffn_dim": 192, "num_layers": 2,
}  # fmt: skip
CONTEXTS = [[[5, 6, 7], [8, 9]], [[10, 11, 12, 13], [14], [15, 16]], [[17]]]
BATCH = ContextBatch.from_sentences(CONTEXTS)


def baseline(dropout: float = 0.0) -> GPT2Baseline:
    torch.manual_seed(0)
    model = GPT2Baseline(GPT2Config(**SIZES, dropout=dropout)).train()
    with torch.no_grad():
        for parameter in model.parameters():  # no bias of 0, no norm of 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def transformers_loss(plain: GPT2LMHeadModel) -> Tensor:
    """Sum over tokens of -log p, a context at a time, by transformers' own forward pass."""
    total = torch.zeros((), dtype=torch.float64)
    for context in CONTEXTS:
        tokens = torch.tensor([token for sentence in context for token in sentence])
        inputs = torch.cat((torch.tensor([SIZES["bos_token_id"]]), tokens[:-1]))
        logits = plain(input_ids=inputs[None]).logits[0]
        total = total + F.cross_entropy(logits.double(), tokens, reduction="sum")
    return total


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_values_and_gradients_are_transformers(dtype, tolerance, recompute) -> None:
    model = baseline().to(dtype)
    plain = GPT2LMHeadModel(model.gpt2.config)
    plain.load_state_dict(model.gpt2.state_dict())
    plain = plain.double().train()
    model.activation_checkpointing = {"generator"} if recompute else set()
    found, expected = model(BATCH).losses["token"].sum, transformers_loss(plain)
    assert found.item() == pytest.approx(expected.item(), rel=tolerance)
    found.backward()
    expected.backward()
    given = dict(plain.named_parameters())
    for name, parameter in model.gpt2.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.stride() == parameter.stride()
        wanted = given[name].grad
        error = (parameter.grad.double() - wanted).abs().max() / wanted.abs().max()
        assert error < tolerance, (name, error)


HOST = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique2"}
"""Operators whose result a GPU's host waits for."""


class Operators(TorchDispatchMode):
    """Counts operators, and refuses those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name.removeprefix("_") not in HOST, name
        assert name not in HOST, name
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **kwargs or {})


def test_no_operator_waits_and_gelu_is_one(monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", "torch")
    model = baseline()
    optimizer = torch.optim.AdamW(model.parameters())
    with Operators() as seen:
        total_loss(model(BATCH).losses, BATCH.counts).backward()
    assert (seen.counts["gelu"], seen.counts["gelu_backward"]) == (2, 2)
    assert not {"tanh", "pow"} & set(seen.counts)
    optimizer.step()
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Operators():
        torch.ones(()).item()


def test_with_dropout_nothing_depends_on_values(monkeypatch) -> None:
    """On the meta device no tensor has a value, so that nothing can be read off one."""
    monkeypatch.setattr(
        "gpst.model.gpt2.on_device", lambda array, device: torch.from_numpy(array).to(device)
    )
    model = baseline(0.1).to("meta")
    loss = total_loss(model(BATCH.to("meta")).losses, BATCH.counts)
    loss.backward()
    assert loss.device.type == "meta"


def test_products_and_attention_are_those_of_gpst(monkeypatch) -> None:
    model, rates = baseline(0.5), []
    causal_attention = gpst.model.gpt2.causal_attention

    def seen(packed: Tensor, rate: float) -> Tensor:
        rates.append(rate)
        # Rates of 0 leave the values alone, so that they can be compared.
        return causal_attention(packed, 1e-9)

    monkeypatch.setattr("gpst.model.gpt2.causal_attention", seen)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) and module.p == 0.5:
            module.p = 0.0
    for block in model.gpt2.transformer.h:
        block.attn.attn_dropout.p = 0.5  # what the attention is given
    calls = []
    product = gpst.kernels.product.product
    monkeypatch.setattr(
        "gpst.kernels.product.product", lambda *given: calls.append(1) or product(*given)
    )
    dropped = model(BATCH).losses["token"].sum
    assert rates == [0.5, 0.5]
    assert len(calls) == 2 * 4
    dropped.backward()
    assert len(calls) == 2 * 4 * 3
    model.eval()
    torch.testing.assert_close(dropped, model(BATCH).losses["token"].sum)
    assert rates == [0.5, 0.5, 0.0, 0.0]

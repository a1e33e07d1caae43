"""The authors' released layout: random tensors of it, and what its own layers compute of them."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from reference_layout import (
    FFN,
    HEADS,
    INSIDE,
    PARSER,
    POSITIONS,
    SCORE,
    TOKENS,
    TYPES,
    D,
    H,
    P,
    V,
    random_tensors,
)
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

from gpst.batch import ContextBatch
from gpst.integrations.released_weights.read import ReleasedWeightsError, convert, read_tensors
from gpst.model.gpst import GPSTModel
from gpst.search.parse import search_text


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return random_tensors()


class Theirs:
    """Their model from torch's and transformers' own layers, hypothesis by hypothesis, float64."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.t = {name: tensor.double() for name, tensor in tensors.items()}
        self.types = self._stack("action_layers", TYPES)
        self.types.ln_f = nn.Identity()
        self.tokens = self._stack("generation_layers", TOKENS)
        with torch.no_grad():
            self.tokens.wpe.weight.zero_()

    def _stack(self, prefix: str, layers: int) -> GPT2Model:
        config = GPT2Config(
            vocab_size=2, n_embd=H, n_head=HEADS[0], n_layer=layers, n_inner=FFN,
            n_positions=64 if prefix == "generation_layers" else POSITIONS,
        )  # fmt: skip
        model = GPT2Model(config).double().eval()
        own = {k.removeprefix(prefix + "."): v for k, v in self.t.items() if k.startswith(prefix)}
        result = model.load_state_dict(own, strict=False)
        assert not result.unexpected_keys
        return model

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.t[f"{name}.weight"], self.t[f"{name}.bias"])

    def mlp(self, name: str, first: str, second: str, x: Tensor) -> Tensor:
        return self.linear(f"{name}.{second}", F.gelu(self.linear(f"{name}.{first}", x)))

    def compose(self, left: Tensor, right: Tensor) -> Tensor:
        x = torch.stack((left, right))[None]
        for layer in range(INSIDE):
            at = f"r2d2.inside_enc.layers.{layer}"
            attention = nn.MultiheadAttention(D, HEADS[1], batch_first=True).double()
            own = {k.removeprefix(at + ".self_attn."): v for k, v in self.t.items() if at in k}
            attention.load_state_dict({k: own[k] for k in attention.state_dict()})
            placed = x + self.t[f"{at}.position_embedding.weight"][:2]
            x = F.layer_norm(x + attention(placed, placed, x)[0], (D,))
            ffn = self.linear(f"{at}.linear2", F.gelu(self.linear(f"{at}.linear1", x)))
            x = F.layer_norm(x + ffn, (D,))
        return F.layer_norm(F.layer_norm(x.sum(1)[0], (D,)), (D,))

    def score(self, kind: str, **vectors: Tensor) -> float:
        """phi of the inside or outside pass, of two vectors by their roles."""
        x, y = (self.mlp(f"r2d2.{kind}_enc.{r}_linear", "0", "2", v) for r, v in vectors.items())
        return float(x @ y) / math.sqrt(SCORE)

    @torch.no_grad()
    def log_p(self, tokens: list[int], spans: tuple[tuple[int, int], ...]) -> float:
        """log p of a sentence and a tree, given by its post-order."""
        inputs, words, stack = [self.t["bos_embedding"]], [0], []
        embedding = self.t["embeddings.weight"]
        for i, j in spans:
            if i == j:
                inputs.append(embedding[tokens[i]])
                stack.append(self.linear("down_scale", embedding[tokens[i]]))
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(self.compose(left, right))
                inputs.append(self.linear("up_scale", stack[-1]))
            words.append(words[-1] + (i == j))
        hidden = self.types(
            inputs_embeds=torch.stack(inputs[:-1])[None], position_ids=torch.tensor([words[:-1]])
        ).last_hidden_state[0]
        normed = F.layer_norm(
            hidden, (H,), self.t["action_mlp.0.weight"], self.t["action_mlp.0.bias"]
        )
        types = F.log_softmax(self.mlp("action_mlp", "1", "4", normed), -1)
        gens = [number for number, (i, j) in enumerate(spans) if i == j]
        written = self.tokens(inputs_embeds=hidden[gens][None]).last_hidden_state[0]
        log_p = F.log_softmax(self.mlp("dense", "0", "3", written) @ embedding.T, -1)
        total = sum(float(types[n, int(i != j)]) for n, (i, j) in enumerate(spans))
        return total + sum(float(log_p[k, token]) for k, token in enumerate(tokens))

    @torch.no_grad()
    def boundary_scores(self, tokens: list[int]) -> Tensor:
        """Of the top-down parser."""
        source = "r2d2.parser.encoder"
        x = self.t[f"{source}.tok_embeddings.weight"][tokens]
        width = P // HEADS[2]
        angle = torch.arange(len(tokens))[:, None] * 10000.0 ** (
            -torch.arange(0, width, 2).double() / width
        )
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()

        def rotate(y: Tensor) -> Tensor:
            half = torch.cat((-y[..., width // 2 :], y[..., : width // 2]), -1)
            return y * cos + half * sin

        for layer in range(PARSER):
            at = f"{source}.layers.{layer}"
            y = F.rms_norm(x, (P,), self.t[f"{at}.attention_norm.weight"], 1e-5)
            packed = [y @ self.t[f"{at}.attention.{n}.weight"].T for n in ("wq", "wk", "wv")]
            q, k, v = (z.view(-1, HEADS[2], width).transpose(0, 1) for z in packed)
            mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v)
            mixed = mixed.transpose(0, 1).flatten(1)
            x = x + mixed @ self.t[f"{at}.attention.wo.weight"].T
            y = F.rms_norm(x, (P,), self.t[f"{at}.ffn_norm.weight"], 1e-5)
            gate, up = (y @ self.t[f"{at}.feed_forward.{n}.weight"].T for n in ("w1", "w3"))
            x = x + (F.silu(gate) * up) @ self.t[f"{at}.feed_forward.w2.weight"].T
        x = F.rms_norm(x, (P,), self.t[f"{source}.norm.weight"], 1e-5)
        return self.mlp("r2d2.parser.score_mlp", "0", "3", torch.cat((x[:-1], x[1:]), -1))[:, 0]


@pytest.fixture(scope="module")
def ours(tensors) -> GPSTModel:
    converted = convert(tensors, bos_token_id=3, heads=HEADS)
    model = GPSTModel(converted.config)
    model.load_state_dict(converted.weights)
    return model.double().eval()


def test_every_tree_has_the_probability_that_their_layers_give_it(tensors, ours):
    theirs, tokens = Theirs(tensors), [4, 1, 7, 2, 9]
    [result] = search_text(ours, [[tokens]], beam=100, num_best=100)
    assert len(result.parses) == 14
    for parse in result.parses:
        expected = theirs.log_p(tokens, parse.trees[0].spans)
        assert parse.log_p == pytest.approx(expected, abs=2e-4)
    log_p = [parse.log_p for parse in result.parses]
    assert max(log_p) - min(log_p) > 0.5  # the trees differ


@torch.no_grad()
def test_scores_of_splits_and_boundaries_are_theirs(tensors, ours):
    theirs, tokens = Theirs(tensors), [4, 1, 7, 2, 9, 1, 0]
    pairs = torch.randn(2, 4, D, dtype=torch.float64)
    for left, right, score in zip(*pairs, ours.composition(*pairs)[1], strict=True):
        expected = theirs.score("inside", left=left, right=right)
        assert float(score) == pytest.approx(expected, abs=1e-6)
    for side, sibling in enumerate(("right", "left")):  # of a left child it is the right one
        sides = torch.full((4,), side)
        for x, y, score in zip(*pairs, ours.decomposition(*pairs, sides)[1], strict=True):
            expected = theirs.score("outside", **{"parent": x, sibling: y})
            assert float(score) == pytest.approx(expected, abs=1e-6)
    found = ours.parser(ContextBatch.from_sentences([[tokens]])).double()[:-1]
    expected = theirs.boundary_scores(tokens)
    difference = found - expected
    assert float(difference.std()) == pytest.approx(0, abs=1e-3)  # all but the bias
    assert float(expected.std()) > 0.1


def test_the_report_names_every_tensor_and_ours_is_whole(tensors, ours):
    converted = convert(tensors, bos_token_id=3, heads=HEADS)
    assert {line.source for line in converted.report} == set(tensors)
    unused = {line.source for line in converted.report if not line.target}
    assert unused == {"classifier.weight", "r2d2.parser.score_mlp.3.bias"}
    assert set(converted.weights) == set(ours.state_dict())
    config = converted.config
    assert (config.num_type_layers, config.num_token_layers) == (TYPES, TOKENS)
    assert (config.composition.num_layers, config.parser.num_layers) == (INSIDE, PARSER)
    assert (config.max_context_tokens, config.token_head_dim) == (POSITIONS - 1, 4 * H)
    assert config.init == "paper"


def test_files_are_read_without_running_what_they_hold(tmp_path, tensors):
    torch.save({"module." + name: tensor for name, tensor in tensors.items()}, tmp_path / "m.bin")
    assert set(read_tensors(tmp_path / "m.bin")) == set(tensors)

    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("it was run",))

    torch.save({"a": Evil()}, tmp_path / "evil.bin")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "text.bin").write_text("hello")
    torch.save({"optimizer": {"lr": 1.0}}, tmp_path / "trainer.bin")
    torch.save([1, 2], tmp_path / "list.bin")
    for name, message in (
        ("evil.bin", "is not unpickled"),
        ("plain.bin", "plain.bin"),
        ("text.bin", "text.bin"),
        ("trainer.bin", "'optimizer' is no tensor"),
        ("list.bin", "holds a list"),
        ("none.bin", "is no file"),
    ):
        with pytest.raises(ReleasedWeightsError, match=message):
            read_tensors(tmp_path / name)


def test_wrong_and_partial_files_name_the_tensor(tensors):
    def without(name: str) -> dict[str, Tensor]:
        return {k: v for k, v in tensors.items() if k != name}

    for changed, message in (
        (without("up_scale.weight"), "'up_scale.weight' is missing"),
        (without("r2d2.parser.score_mlp.3.bias"), r"score_mlp\.3\.bias' is missing"),
        (without("action_layers.h.1.ln_2.bias"), r"h\.1\.ln_2\.bias' is missing"),
        (tensors | {"dense.3.bias": torch.zeros(3)}, r"'dense\.3\.bias' has the shape \[3\]"),
        (tensors | {"ext_embeds.weight": torch.zeros(3)}, "'ext_embeds.weight' has no place"),
        (tensors | {"classifier.weight": torch.zeros(V, H)}, "not tied"),
        ({"gpt.transformer.wte.weight": torch.zeros(2, 2)}, "GPT-2 baseline"),
    ):
        with pytest.raises(ReleasedWeightsError, match=message):
            convert(changed, bos_token_id=3, heads=HEADS)

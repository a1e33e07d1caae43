"""Which of the authors' tensors becomes which of ours; read.py says what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpst.config import CompositionConfig, GPSTConfig, ParserConfig


class ReleasedWeightsError(ValueError):
    """A file is not the authors' layout, or not whole; the message names the tensor."""


@dataclass(frozen=True)
class Mapped:
    """A line of the report."""

    source: str
    shape: tuple[int, ...]
    target: str
    """Empty: not used."""
    how: str


def required(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...] | None) -> Tensor:
    if name not in tensors:
        raise ReleasedWeightsError(
            f"{name!r} is missing: the file is no GPST of the authors' release, or only a part"
        )
    tensor = tensors[name]
    if shape is not None and tuple(tensor.shape) != shape:
        raise ReleasedWeightsError(
            f"{name!r} has the shape {list(tensor.shape)}, not {list(shape)}"
        )
    return tensor.float()


class Work:
    """What has been read of their tensors and made of ours."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors
        self.used: set[str] = set()
        self.weights: dict[str, Tensor] = {}
        self.report: list[Mapped] = []

    def get(self, name: str, shape: tuple[int, ...], target: str, how: str) -> Tensor:
        """A tensor of theirs, written into the report."""
        tensor = required(self.tensors, name, shape)
        self.used.add(name)
        self.report.append(Mapped(name, shape, target, how))
        return tensor

    def copy(
        self,
        name: str,
        target: str,
        shape: tuple[int, ...],
        change: Callable[[Tensor], Tensor] | None = None,
        how: str = "copied",
    ) -> None:
        tensor = self.get(name, shape, target, how)
        self.weights[target] = (tensor if change is None else change(tensor)).contiguous()

    def linear(self, name: str, target: str, out: int, into: int) -> None:
        """A linear layer with bias."""
        self.copy(f"{name}.weight", f"{target}.weight", (out, into))
        self.copy(f"{name}.bias", f"{target}.bias", (out,))

    def norm(self, name: str, target: str, dim: int) -> None:
        for part in ("weight", "bias"):
            self.copy(f"{name}.{part}", f"{target}.{part}", (dim,))


def map_all(tensors: Mapping[str, Tensor], config: GPSTConfig) -> Work:
    """Reads all of their tensors and makes ours.

    Raises:
        ReleasedWeightsError: a tensor is missing or has another shape than the configuration says.
    """
    work = Work(tensors)
    _embeddings(work, config)
    for kind in ("inside", "outside"):
        _pair_model(work, config, kind)
    _generator(work, config)
    _parser(work, config)
    return work


def _embeddings(work: Work, config: GPSTConfig) -> None:
    hidden, dim, vocab = config.hidden_dim, config.composition.dim, config.vocab_size
    work.copy("embeddings.weight", "embedding.weight", (vocab, hidden))
    if "classifier.weight" in work.tensors:
        tied = work.get("classifier.weight", (vocab, hidden), "", "tied to embeddings.weight")
        if not torch.equal(tied, work.weights["embedding.weight"]):
            raise ReleasedWeightsError("'classifier.weight' is not tied to 'embeddings.weight'")
    work.linear("down_scale", "scaling.down", dim, hidden)
    work.linear("up_scale", "scaling.up", hidden, dim)
    work.linear("insideoutside_dense.0", "autoencoding_head.dense", 4 * dim, dim)
    work.linear("insideoutside_dense.3", "autoencoding_head.out", hidden, 4 * dim)


def _pair_model(work: Work, config: GPSTConfig, kind: str) -> None:
    """f and phi of the inside (composition) or outside (decomposition) pass."""
    sizes = config.composition
    source = f"r2d2.{kind}_enc"
    target = "composition" if kind == "inside" else "decomposition"
    number = sizes.num_layers if kind == "inside" else sizes.num_decomposition_layers
    for layer in range(number):
        _pair_layer(work, sizes, f"{source}.layers.{layer}", f"{target}.layers.{layer}")
    _roles(work, sizes, source, target, number)
    roles = ["left", "right"]
    if kind == "outside":
        roles.append("parent")
        work.copy("r2d2.outside_root_embedding", "decomposition.root", (sizes.dim,))
    for role in roles:
        theirs, ours = f"{source}.{role}_linear", f"{target}.score.{role}"
        work.linear(f"{theirs}.0", f"{ours}.0", sizes.dim, sizes.dim)
        work.linear(f"{theirs}.2", f"{ours}.2", sizes.score_dim, sizes.dim)


def _pair_layer(work: Work, sizes: CompositionConfig, source: str, target: str) -> None:
    dim, ffn = sizes.dim, sizes.ffn_dim
    for part, shape in (("weight", (3 * dim, dim)), ("bias", (3 * dim,))):
        where = f"{target}.query_key.{part}, {target}.value.{part}"
        packed = work.get(f"{source}.self_attn.in_proj_{part}", shape, where, "cut in two")
        work.weights[f"{target}.query_key.{part}"] = packed[: 2 * dim].clone()
        work.weights[f"{target}.value.{part}"] = packed[2 * dim :].clone()
    work.linear(f"{source}.self_attn.out_proj", f"{target}.attention_out", dim, dim)
    work.linear(f"{source}.linear1", f"{target}.ffn_in", ffn, dim)
    work.linear(f"{source}.linear2", f"{target}.ffn_out", dim, ffn)


def _roles(work: Work, sizes: CompositionConfig, source: str, target: str, num_layers: int) -> None:
    """Role embeddings of each layer there; here one table, which the first layer reads as it is."""
    # Theirs: parent, sibling on the right, sibling on the left; ours has the left one first.
    order = [0, 1] if target == "composition" else [0, 2, 1]
    tables = []
    for layer in range(num_layers):
        name = f"{source}.layers.{layer}.position_embedding.weight"
        rows = required(work.tensors, name, None).shape[0]
        if rows < len(order):
            raise ReleasedWeightsError(f"{name!r} has {rows} rows, not at least {len(order)}")
        where, how = f"{target}.role", f"rows {order} of {rows}"
        if layer:
            where = f"{target}.layers.{layer}.query_key"
            how = "folded: weights along the ones direction, bias"
        tables.append(work.get(name, (rows, sizes.dim), where, how)[order])
    work.weights[f"{target}.role"] = tables[0].clone()
    for layer in range(1, num_layers):
        if torch.equal(tables[layer], tables[0]):
            continue
        if len(order) > 2:
            raise ReleasedWeightsError(
                f"the {num_layers} layers of {source} have different roles, which only a "
                "composition model's can be folded into one table"
            )
        _fold_roles(work.weights, f"{target}.layers.{layer}.query_key", tables[0], tables[layer])


def _fold_roles(weights: dict[str, Tensor], name: str, ours: Tensor, theirs: Tensor) -> None:
    """Makes W (x + ours_i) + b the same as it was with theirs_i, for all x of mean zero.

    W' = W + a 1^T leaves W x as it is; a and b' solve two equations, one for each role.
    """
    weight, bias = weights[f"{name}.weight"].double(), weights[f"{name}.bias"].double()
    ours, theirs = ours.double(), theirs.double()
    sums = ours.sum(1)
    change = (theirs - ours) @ weight.T
    if abs(float(sums[0] - sums[1])) < 1e-3:
        raise ReleasedWeightsError(
            f"{name}: the roles of the first layer have equal sums, so that the others' cannot be "
            "folded into the weights"
        )
    along = (change[0] - change[1]) / (sums[0] - sums[1])
    weights[f"{name}.weight"] = (weight + along[:, None]).float()
    weights[f"{name}.bias"] = (bias + change[0] - along * sums[0]).float()


def _generator(work: Work, config: GPSTConfig) -> None:
    hidden = config.hidden_dim
    positions = work.get(
        "action_layers.wpe.weight",
        (config.max_context_tokens + 1, hidden),
        "generator.position.weight",
        "copied but for position 0",
    ).clone()
    bos = work.get(
        "bos_embedding", (hidden,), "generator.position.weight", "folded into position 0"
    )
    positions[0] += bos - work.weights["embedding.weight"][config.bos_token_id]
    work.weights["generator.position.weight"] = positions
    for source, target, number in (
        ("action_layers", "type_layers", config.num_type_layers),
        ("generation_layers", "token_layers", config.num_token_layers),
    ):
        for layer in range(number):
            _block(work, config, f"{source}.h.{layer}", f"generator.{target}.blocks.{layer}")
    work.norm("action_mlp.0", "generator.type_norm", hidden)
    work.linear("action_mlp.1", "generator.type_head.dense", hidden, hidden)
    work.linear("action_mlp.4", "generator.type_head.out", 2, hidden)
    work.norm("generation_layers.ln_f", "generator.token_norm", hidden)
    middle = config.token_head_width
    work.linear("dense.0", "generator.token_head.dense", middle, hidden)
    work.linear("dense.3", "generator.token_head.out", hidden, middle)


def _block(work: Work, config: GPSTConfig, source: str, target: str) -> None:
    hidden, ffn = config.hidden_dim, config.ffn_dim
    work.norm(f"{source}.ln_1", f"{target}.attention_norm", hidden)
    work.norm(f"{source}.ln_2", f"{target}.ffn_norm", hidden)
    for theirs, ours, into, out in (
        ("attn.c_attn", "query_key_value", hidden, 3 * hidden),
        ("attn.c_proj", "attention_out", hidden, hidden),
        ("mlp.c_fc", "ffn_in", hidden, ffn),
        ("mlp.c_proj", "ffn_out", ffn, hidden),
    ):
        name, goal = f"{source}.{theirs}", f"{target}.{ours}"
        work.copy(f"{name}.weight", f"{goal}.weight", (into, out), lambda w: w.T, "transposed")
        work.copy(f"{name}.bias", f"{goal}.bias", (out,))


def _parser(work: Work, config: GPSTConfig) -> None:
    sizes = config.parser
    dim, ffn, middle = sizes.dim, sizes.ffn_dim, sizes.score_width
    source = "r2d2.parser.encoder"
    embedding = (config.vocab_size, dim)
    work.copy(f"{source}.tok_embeddings.weight", "parser.embedding.weight", embedding)
    for layer in range(sizes.num_layers):
        _parser_layer(work, sizes, f"{source}.layers.{layer}", f"parser.layers.{layer}", ffn)
    work.copy(f"{source}.norm.weight", "parser.norm.weight", (dim,))
    work.linear("r2d2.parser.score_mlp.0", "parser.dense", middle, 2 * dim)
    work.copy("r2d2.parser.score_mlp.3.weight", "parser.score.weight", (1, middle))
    work.get("r2d2.parser.score_mlp.3.bias", (1,), "", "not used: no order sees it")


def _parser_layer(work: Work, sizes: ParserConfig, source: str, target: str, ffn: int) -> None:
    dim = sizes.dim
    for norm in ("attention_norm", "ffn_norm"):
        work.copy(f"{source}.{norm}.weight", f"{target}.{norm}.weight", (dim,))
    packed = f"{target}.query_key_value.weight"
    how = {"wq": "rotary halves interleaved", "wk": "rotary halves interleaved", "wv": "copied"}
    parts = [
        work.get(f"{source}.attention.{name}.weight", (dim, dim), packed, how[name])
        for name in ("wq", "wk", "wv")
    ]
    rotated = [_interleaved(part, sizes.num_heads) for part in parts[:2]]
    work.weights[packed] = torch.cat([*rotated, parts[2]])
    work.copy(f"{source}.attention.wo.weight", f"{target}.attention_out.weight", (dim, dim))
    gate = f"{target}.gate_and_value.weight"
    gates = [
        work.get(f"{source}.feed_forward.{name}.weight", (ffn, dim), gate, "joined")
        for name in ("w1", "w3")
    ]
    work.weights[gate] = torch.cat(gates)
    work.copy(f"{source}.feed_forward.w2.weight", f"{target}.ffn_out.weight", (dim, ffn))


def _interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """Rotary positions turn features (i, i + d/2) of a head there, (2i, 2i + 1) here."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)

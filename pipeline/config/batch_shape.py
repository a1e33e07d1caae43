"""What follows from a configuration and its surroundings: batch arithmetic, the model's sizes."""

from dataclasses import dataclass

from data_prep.format.manifest import Manifest
from pipeline.config.run import ResolvedRun, RunConfig, RunSettings, read_model
from pipeline.errors import ConfigError
from pipeline.quantities import counted


@dataclass(frozen=True)
class BatchShape:
    """How a global batch is cut: global_batch = micro_batch * accumulation * world_size."""

    global_batch: int
    """Contexts in an optimizer step over all ranks."""
    micro_batch: int
    """Contexts in one forward pass of a rank."""
    accumulation: int
    """Forward and backward passes of a rank in an optimizer step."""
    world_size: int
    """Ranks."""

    def describe(self) -> str:
        """The arithmetic in words."""
        return (
            f"{self.global_batch} contexts a step = {self.micro_batch} a micro-batch x "
            f"{self.accumulation} accumulated x {counted(self.world_size, 'rank')}"
        )


def batch_shape(config: RunSettings, world_size: int) -> BatchShape:
    """The batch arithmetic on `world_size` ranks.

    Raises:
        ConfigError: the global batch does not divide; the message names all the numbers.
    """
    total = config.train.global_batch_contexts
    micro = config.train.micro_batch_contexts_per_rank
    accumulation, rest = divmod(total, micro * world_size)
    if rest == 0:
        return BatchShape(total, micro, accumulation, world_size)
    problem = (
        f"train.global_batch_contexts {total} is not a multiple of "
        f"train.micro_batch_contexts_per_rank {micro} x {counted(world_size, 'rank')} = "
        f"{micro * world_size}"
    )
    if total % world_size:
        lower = total - total % world_size
        near = [str(n) for n in (lower, lower + world_size) if n]
        raise ConfigError(
            f"{problem}; nor of the number of ranks: set train.global_batch_contexts to "
            f"{' or '.join(near)}, or use another number of ranks"
        )
    per_rank = total // world_size
    allowed = [str(n) for n in range(1, per_rank + 1) if per_rank % n == 0]
    raise ConfigError(
        f"{problem}; set train.micro_batch_contexts_per_rank to one of {', '.join(allowed)}"
    )


def resolve_model(config: RunConfig, manifest: Manifest) -> ResolvedRun:
    """The run with its model's complete configuration.

    vocab_size and bos_token_id come from the dataset where the model's config does not say.

    Raises:
        ConfigError: the model's config is wrong or does not fit the dataset.
    """
    model = dict(config.model)
    from_dataset = {
        "vocab_size": manifest.vocab_size,
        "bos_token_id": manifest.tokenizer.bos_id,
    }
    for name, value in from_dataset.items():
        if model.get(name) is None:
            model[name] = value
        elif model[name] != value:
            raise ConfigError(
                f"model.{name} {model[name]!r} does not match the dataset's tokenizer, which has "
                f"{value}; leave model.{name} out, or use the tokenizer the model was made for"
            )
    resolved = read_model(model)
    if config.data.context_tokens > resolved.max_context_tokens:
        raise ConfigError(
            f"data.context_tokens {config.data.context_tokens} is more than "
            f"model.max_context_tokens {resolved.max_context_tokens}; "
            "lower the one or raise the other"
        )
    return config.with_model(resolved)

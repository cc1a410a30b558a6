"""What a model's own configuration says of its KV cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`layers` are those that keep keys and values; `head_size` in elements, with `mla` the latent and its rotary part.

    `name` says which model and file; `notes` what the configuration cannot say for certain.
    """

    name: str
    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int
    mla: bool
    notes: tuple[str, ...] = ()

"""A model's `config.json`, as Hugging Face Transformers writes it (PretrainedConfig.to_json_file)."""

import json
from pathlib import Path
from typing import Any

from kvdiag.errors import InputError
from kvdiag.model.model_config import ModelConfig

_MOST_BYTES = 16 << 20
# A model of several modalities keeps the language model's fields in one of these.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
# Of layer_types: these keep keys and values; linear attention and Mamba layers keep a state of fixed size instead.
_KEEPING = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_WINDOWED = ("sliding_attention", "chunked_attention")


def read(path: Path) -> ModelConfig:
    """Return the KV geometry that a file, or the folder that holds it, states.

    With `kv_lora_rank` a layer keeps one latent of kv_lora_rank + qk_rope_head_dim elements (multi-head latent
    attention: DeepSeek-V2, arXiv:2405.04434, section 2.1). InputError names the file and the field.
    """
    if path.is_dir():
        path /= "config.json"
    fields = _fields(path)
    nested = next((name for name in _NESTED if isinstance(fields.get(name), dict)), None)
    inner = fields[nested] if nested else fields
    reader = _Reader(path, inner)
    layers, notes = _layers(reader)
    mla = inner.get("kv_lora_rank") is not None
    if mla:
        kv_heads, head_size = 1, reader.count("kv_lora_rank") + reader.count("qk_rope_head_dim")
    else:
        # What a field of its own says is never derived from others, which may then be absent.
        kv_heads = reader.count("num_key_value_heads", 0) or reader.count("num_attention_heads")
        head_size = reader.count("head_dim", 0) or reader.count("hidden_size") // reader.count("num_attention_heads")
    dtype = str(inner.get("torch_dtype") or inner.get("dtype") or fields.get("torch_dtype") or fields.get("dtype"))
    dtype_bytes = _DTYPE_BYTES.get(dtype.removeprefix("torch."))
    if dtype_bytes is None:
        notes.append(f"{path}: dtype {dtype[:40]}: 2 bytes an element assumed; say --dtype-bytes")
    architecture = next(iter(fields.get("architectures") or ()), fields.get("model_type", "unnamed model"))
    return ModelConfig(
        name=f"{str(architecture)[:80]} of {path}",
        layers=layers,
        kv_heads=kv_heads,
        head_size=head_size,
        dtype_bytes=dtype_bytes or 2,
        mla=mla,
        notes=tuple(notes),
    )


class _Reader:
    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self._path, self._fields = path, fields

    def count(self, name: str, default: int | None = None) -> int:
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
            shown = "is missing" if value is None else f"is {value!r:.40}, not a count from 1 to {1 << 20}"
            raise InputError(
                f"{self._path}: {name} {shown}: is it a language model's config.json? Else give --layers, "
                "--kv-heads and --head-size"
            )
        return value

    def names(self, name: str) -> list[str]:
        value = self._fields.get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise InputError(f"{self._path}: {name} is not a list of names")
        return value

    @property
    def path(self) -> Path:
        return self._path


def _layers(reader: _Reader) -> tuple[int, list[str]]:
    total = reader.count("num_hidden_layers")
    types = reader.names("layer_types")
    if not types:
        return total, []
    keeping = sum(kind in _KEEPING for kind in types)
    if not keeping:
        raise InputError(f"{reader.path}: layer_types names no attention layer: no KV cache moves")
    notes = []
    if len(types) > keeping:
        notes.append(f"{len(types) - keeping} of {len(types)} layers keep no keys and values, and are not counted")
    windowed = sum(kind in _WINDOWED for kind in types)
    if windowed:
        notes.append(
            f"{windowed} layers attend to a window only; they are counted with all tokens, an engine may keep less"
        )
    return keeping, notes


def _fields(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}: give a model's config.json, or the folder that holds it"
        ) from error
    if len(text) > _MOST_BYTES:
        raise InputError(f"{path}: more than {_MOST_BYTES} bytes: this is no config.json")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path}: a {type(fields).__name__}, not an object: give a model's config.json")
    return fields

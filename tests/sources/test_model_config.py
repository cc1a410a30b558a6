"""A model's config.json, shaped as Transformers writes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvdiag.errors import InputError
from kvdiag.sources.model_config import read

GROUPED: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
LATENT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


def written(folder: Path, fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


def test_grouped_heads_are_read_and_the_folder_will_do(tmp_path: Path) -> None:
    written(tmp_path, GROUPED)
    found = read(tmp_path)
    assert (found.layers, found.kv_heads, found.head_size, found.dtype_bytes, found.mla) == (32, 8, 128, 2, False)
    assert found.name == f"LlamaForCausalLM of {tmp_path}/config.json" and found.notes == ()


def test_a_latent_is_the_compressed_vector_and_its_rotary_part(tmp_path: Path) -> None:
    found = read(written(tmp_path, LATENT))
    assert (found.layers, found.kv_heads, found.head_size, found.mla) == (61, 1, 576, True)


def test_an_explicit_head_size_and_absent_grouping(tmp_path: Path) -> None:
    fields = {name: value for name, value in GROUPED.items() if name != "num_key_value_heads"}
    found = read(written(tmp_path, fields | {"head_dim": 256, "dtype": "float32", "torch_dtype": None}))
    assert (found.kv_heads, found.head_size, found.dtype_bytes) == (32, 256, 4)


def test_the_language_model_of_several_modalities_is_found(tmp_path: Path) -> None:
    outer = {"architectures": ["SomeForConditionalGeneration"], "text_config": GROUPED, "vision_config": {}}
    assert read(written(tmp_path, outer)).layers == 32


def test_layers_without_keys_and_values_are_not_counted_and_windows_are_named(tmp_path: Path) -> None:
    types = ["linear_attention", "linear_attention", "sliding_attention", "full_attention"]
    found = read(written(tmp_path, GROUPED | {"num_hidden_layers": 4, "layer_types": types}))
    assert found.layers == 2
    assert found.notes[0].startswith("2 of 4 layers keep no keys and values")
    assert found.notes[1].startswith("1 layers attend to a window only")


def test_an_unknown_dtype_is_assumed_and_said(tmp_path: Path) -> None:
    found = read(written(tmp_path, GROUPED | {"torch_dtype": "auto"}))
    assert found.dtype_bytes == 2 and "dtype auto: 2 bytes an element assumed" in found.notes[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "a list, not an object"),
        ({}, "num_hidden_layers is missing: is it"),
        (GROUPED | {"num_hidden_layers": "32"}, "num_hidden_layers is '32', not a count from 1 to"),
        (GROUPED | {"num_attention_heads": 0}, "num_attention_heads is 0, not a count"),
        (
            {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": -64},
            "head_dim is -64, not a count from 1 to 1048576",
        ),
        (LATENT | {"qk_rope_head_dim": None}, "qk_rope_head_dim is missing"),
        (GROUPED | {"layer_types": ["mamba"] * 32}, "no KV cache moves"),
        (GROUPED | {"layer_types": "full"}, "layer_types is not a list"),
    ],
)
def test_what_is_no_language_models_configuration_names_the_field(tmp_path: Path, fields: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(written(tmp_path, fields))


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="not JSON"):
        read(tmp_path)

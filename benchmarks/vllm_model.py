"""Make a Llama of a few million random weights, for benchmarks/vllm_pair.py: python vllm_model.py FOLDER.

Runs in vLLM's own environment. Four layers of eight heads of 128 in bfloat16: 16 KiB of KV cache per token, so a prompt
of 1024 tokens is a transfer of 16 MiB. What it says means nothing; it takes as long as it takes.
"""

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096


def main(folder: str) -> None:
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fillers = [f"<{number}>" for number in range(VOCABULARY - len(characters))]
    numbers = {piece: number for number, piece in enumerate([*characters, *fillers])}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=fillers[-1]).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=VOCABULARY - 1,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])

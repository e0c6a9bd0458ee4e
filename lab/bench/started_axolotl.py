"""What lab/bench/started.py has axolotl train: a Llama of 3 million random weights, and lines of
words that mean nothing.

    python lab/bench/started_axolotl.py

Writes model/ with a tokenizer, data.jsonl and config.yml.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1024
_SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
CONFIG = """\
base_model: model
model_type: LlamaForCausalLM
tokenizer_type: AutoTokenizer
datasets:
  - path: data.jsonl
    ds_type: json
    type: completion
    field: text
dataset_prepared_path: prepared
dataset_num_proc: 1
val_set_size: 0
sequence_len: 256
pad_to_sequence_len: true
sample_packing: false
micro_batch_size: 4
gradient_accumulation_steps: 1
num_epochs: 1
max_steps: 40
optimizer: adamw_torch
learning_rate: 0.001
lr_scheduler: cosine
warmup_steps: 5
weight_decay: 0.01
bf16: false
fp16: false
tf32: false
attn_implementation: sdpa
gradient_checkpointing: false
lora_dropout: 0.1
lora_mlp_kernel: false
lora_qkv_kernel: false
lora_o_kernel: false
lora_embedding_kernel: false
use_cpu: true
device: cpu
dataloader_num_workers: 0
seed: 42
logging_steps: 1
save_steps: 40
output_dir: out
"""


def _texts(count: int) -> list[str]:
    drawn = random.Random(0)
    syllables = [first + second for first in "bcdfghklmnprst" for second in "aeiou"]
    words = ["".join(drawn.choices(syllables, k=drawn.randint(1, 4))) for _ in range(600)]
    return [" ".join(drawn.choices(words, k=drawn.randint(80, 260))) for _ in range(count)]


def _tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, **_SPECIAL)


def _model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    """See the module's text."""
    texts = _texts(240)
    Path("data.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    tokenizer = _tokenizer(texts)
    tokenizer.save_pretrained("model")
    model = _model(tokenizer)
    model.save_pretrained("model")
    Path("config.yml").write_text(CONFIG)
    print(sum(each.numel() for each in model.parameters()), "weights")


if __name__ == "__main__":
    main()

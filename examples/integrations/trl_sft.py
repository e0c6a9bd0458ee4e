"""Supervised fine-tuning with TRL: python trl_sft.py [LIMIT]"""

import sys

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from datasets import Dataset
from torch_lms.integrations.transformers import LmsCallback

callbacks = [LmsCallback(limit=sys.argv[1])] if sys.argv[1:] else []  # before the model is made

set_seed(0)
size = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=1024, num_attention_heads=4, **size))
words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(1024)}, unk_token="w0"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2")
data = Dataset.from_dict({"input_ids": torch.randint(1024, (96, 64)).tolist()})
every = {"max_steps": 24, "logging_steps": 8, "per_device_train_batch_size": 4}
quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "bf16": False}
arguments = SFTConfig("out/trl", max_length=64, **every, **quiet)
given = {"train_dataset": data, "processing_class": tokenizer, "callbacks": callbacks}
trainer = SFTTrainer(model, arguments, **given)
trainer.train()

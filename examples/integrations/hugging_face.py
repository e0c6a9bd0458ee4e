"""A language model with the Trainer of Hugging Face: python hugging_face.py [LIMIT]"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from torch_lms.integrations.transformers import LmsCallback

lms = LmsCallback(limit=sys.argv[1]) if sys.argv[1:] else None  # before the model is made

set_seed(0)
size = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=1024, num_attention_heads=4, **size))
data = [{"input_ids": row, "labels": row} for row in torch.randint(1024, (96, 64))]
every = {"max_steps": 24, "logging_steps": 8, "per_device_train_batch_size": 4}
quiet = {"save_strategy": "no", "report_to": "all", "disable_tqdm": True}
trainer = Trainer(model, TrainingArguments("out/hf", **every, **quiet), train_dataset=data)
if lms is not None:
    lms.attach(trainer)  # callbacks=[lms] does, too, but for TensorBoard and W&B
trainer.train()

"""Training loops of which no two steps need be alike: depth, length, and how many micro-batches an
update takes, are drawn anew each time; or training takes turns with something else."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.packages import import_package
from bench.program import (
    SEED,
    TINY_BERT,
    TINY_GPT2,
    Program,
    Where,
    adamw,
    one_update,
    sgd,
    transformers,
)


def random_depth(where: Where) -> Program:
    """A vision transformer, whose layers are left out now and then: the deeper the more often."""
    timm = import_package("timm")
    chance = random.Random(SEED)

    class MayBeLeftOut(nn.Module):
        def __init__(self, inner: nn.Module, share: float) -> None:
            super().__init__()
            self.inner, self.share = inner, share

        def forward(self, x: Tensor, **given: object) -> Tensor:
            return x if chance.random() < self.share else self.inner(x, **given)

    name = "vit_tiny_patch16_224" if where.tiny else "vit_base_patch16_224"
    batch = 2 if where.tiny else 64
    model = timm.create_model(name, num_classes=100)
    last = len(model.blocks) - 1
    for at, block in enumerate(model.blocks):
        model.blocks[at] = MayBeLeftOut(block, 0.2 * at / last)
    model = model.to(where.device).train()
    images = torch.randn(batch, 3, 224, 224).to(where.device)
    labels = torch.randint(100, (batch,)).to(where.device)
    update = adamw(model)

    def step(_: int) -> Tensor:
        return one_update(where, update, lambda: functional.cross_entropy(model(images), labels))

    return Program(model, step)


def sample_then_train(where: Where) -> Program:
    """A GPT-2 that writes on, now more and now less, and is trained on what it has written."""
    model = transformers("GPT2LMHeadModel", "GPT2Config", {}, TINY_GPT2)(where)
    words, chance = model.config.vocab_size, random.Random(SEED)
    batch, start, most = (2, 8, 8) if where.tiny else (64, 64, 32)
    update = adamw(model)

    def step(_: int) -> Tensor:
        prompt = torch.randint(3, words, (batch, start)).to(where.device)
        count = chance.randint(most // 3, most)
        given = {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0, "do_sample": True}
        model.eval()
        with torch.no_grad(), where.autocast():
            text = model.generate(prompt, min_new_tokens=count, max_new_tokens=count, **given)
        model.train()
        return one_update(where, update, lambda: model(input_ids=text, labels=text).loss)

    return Program(model, step)


def accumulated(where: Where) -> Program:
    """A BERT: one to four micro-batches for an update."""
    model = transformers("BertForMaskedLM", "BertConfig", {}, TINY_BERT)(where)
    words, chance = model.config.vocab_size, random.Random(SEED)
    update = adamw(model)

    def step(_: int) -> Tensor:
        update.zero_grad()
        total, count = torch.zeros((), device=where.device), chance.randint(1, 4)
        for _ in range(count):
            tokens = torch.randint(words, (2, 32) if where.tiny else (24, 512)).to(where.device)
            with where.autocast():
                loss = model(input_ids=tokens, labels=tokens).loss / count
            loss.backward()
            total += loss.detach()
        update.step()
        return total

    return Program(model, step)


def turns_of_two(where: Where) -> Program:
    """A generator of images and who judges them: an iteration is a step of the one or the other."""
    side, width, batch = (16, 8, 4) if where.tiny else (64, 128, 1024)
    ups: list[nn.Module] = [nn.ConvTranspose2d(100, width * 8, 4), nn.ReLU(True)]
    downs: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    wide, many = width, width * 8
    for _ in range(1 if where.tiny else 3):
        ups += [nn.ConvTranspose2d(many, many // 2, 4, 2, 1), nn.BatchNorm2d(many // 2)]
        ups += [nn.ReLU(True)]
        downs += [nn.Conv2d(wide, wide * 2, 4, 2, 1), nn.BatchNorm2d(wide * 2)]
        downs += [nn.LeakyReLU(0.2, True)]
        wide, many = wide * 2, many // 2
    ups += [nn.ConvTranspose2d(many, 3, 4, 2, 1), nn.Tanh()]
    downs += [nn.Conv2d(wide, 1, 4), nn.Flatten()]
    both = nn.ModuleList([nn.Sequential(*ups), nn.Sequential(*downs)]).to(where.device).train()
    generator, judge = both
    real = torch.randn(batch, 3, side, side).to(where.device)
    updates = [sgd(generator), sgd(judge)]
    loss_of = functional.binary_cross_entropy_with_logits

    def step(at: int) -> Tensor:
        noise = torch.randn(batch, 100, 1, 1, device=where.device)
        if at % 2 == 0:
            with torch.no_grad():
                made = generator(noise)
            updates[1].zero_grad()
            seen, faked = judge(real), judge(made)
            loss = loss_of(seen, torch.ones_like(seen)) + loss_of(faked, torch.zeros_like(faked))
        else:
            updates[0].zero_grad()
            fooled = judge(generator(noise))
            loss = loss_of(fooled, torch.ones_like(fooled))
        loss.backward()
        updates[1 - at % 2].step()
        return loss.detach()

    return Program(both, step)

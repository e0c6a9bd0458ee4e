"""Training programs written out one by one: speech, detection, graphs, recurrence, two networks
against each other, and others, on models of torchvision, torch_geometric, timm and transformers."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.packages import import_package
from bench.program import SEED, Program, Where, adamw, sgd, transformers


def speech(where: Where) -> Program:
    """Whisper's encoder and decoder."""
    sizes = {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "vocab_size": 51865}
    sizes |= {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
    sizes |= {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
    tiny = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 256}
    tiny |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "pad_token_id": 0}
    tiny |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "decoder_start_token_id": 1}
    tiny |= {"bos_token_id": 1, "eos_token_id": 2, "max_source_positions": 100}
    build = transformers("WhisperForConditionalGeneration", "WhisperConfig", sizes, tiny)
    model = build(where)
    batch = 2 if where.tiny else 12
    sound = torch.randn(batch, 80, 200 if where.tiny else 3000).to(where.device)
    text = torch.randint(3, model.config.vocab_size, (batch, 16 if where.tiny else 200))
    text = text.to(where.device)
    update = adamw(model)

    def step(_: int) -> Tensor:
        update.zero_grad()
        with where.autocast():
            loss = model(input_features=sound, labels=text).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        return loss.detach()

    return Program(model, step)


def torchvision_segmentation(where: Where) -> Program:
    """FCN in float16 with a scaler."""
    torchvision = import_package("torchvision")
    model = torchvision.models.segmentation.fcn_resnet50(
        weights=None, weights_backbone=None, aux_loss=True
    )
    model = model.to(where.device).train()
    batch, side = (2, 64) if where.tiny else (8, 513)
    images = torch.randn(batch, 3, side, side).to(where.device)
    target = torch.randint(21, (batch, side, side)).to(where.device)
    update = sgd(model)
    scaler = torch.amp.GradScaler(where.device.type)
    low = torch.float16 if where.device.type == "cuda" else torch.bfloat16

    def loss_of(scores: Tensor) -> Tensor:
        rows = scores.permute(0, 2, 3, 1).flatten(0, 2)
        return functional.cross_entropy(rows, target.flatten())

    def step(_: int) -> Tensor:
        update.zero_grad()
        with where.autocast(low):
            out = model(images)
            loss = loss_of(out["out"]) + 0.5 * loss_of(out["aux"])
        scaler.scale(loss).backward()
        scaler.unscale_(update)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(update)
        scaler.update()
        return loss.detach()

    return Program(model, step)


def torchvision_detection(name: str, batch: int) -> Callable[[Where], Program]:
    """A detector on images whose sizes, and boxes, are others each time. Sizes and counts are drawn
    as they are in COCO: sides of 640 pixels and, mostly, 426 to 480, about seven objects each."""

    def make(where: Where) -> Program:
        torchvision = import_package("torchvision")
        side = {"min_size": 96, "max_size": 160} if where.tiny else {}
        detector = getattr(torchvision.models.detection, name)
        model = detector(weights=None, weights_backbone=None, num_classes=91, **side)
        model = model.to(where.device).train()
        update = sgd(model)
        chance = random.Random(SEED)
        masks = name.startswith("mask")

        def sample() -> tuple[Tensor, dict[str, Tensor]]:
            short = chance.choice((426, 427, 428, 480, 480, 500, 612, 640))
            height, width = (640, short) if chance.random() < 0.3 else (short, 640)
            if where.tiny:
                height, width = height // 6, width // 6
            count = max(1, int(chance.expovariate(1 / 7.3)))
            count = min(count, 3 if where.tiny else 60)
            corner = torch.rand(count, 2) * 0.6
            extent = torch.rand(count, 2) * 0.35 + 0.05
            boxes = torch.cat([corner, corner + extent], 1)
            boxes = boxes * torch.tensor([width, height, width, height])
            found = {"boxes": boxes, "labels": torch.randint(1, 91, (count,))}
            if masks:
                found["masks"] = (torch.rand(count, height, width) > 0.5).to(torch.uint8)
            found = {key: value.to(where.device) for key, value in found.items()}
            return torch.rand(3, height, width).to(where.device), found

        def step(_: int) -> Tensor:
            samples = [sample() for _ in range(2 if where.tiny else batch)]
            update.zero_grad()
            losses = model([x for x, _ in samples], [t for _, t in samples])
            loss = sum(losses.values(), torch.zeros((), device=where.device))
            loss.backward()
            update.step()
            return loss.detach()

        return Program(model, step)

    return make


def torchvision_video(where: Where) -> Program:
    torchvision = import_package("torchvision")
    model = torchvision.models.video.r3d_18(weights=None, num_classes=51)
    model = model.to(where.device).train()
    shape = (1, 3, 4, 32, 32) if where.tiny else (16, 3, 16, 112, 112)
    clips, labels = torch.randn(shape).to(where.device), torch.randint(51, shape[:1])
    labels = labels.to(where.device)
    update = sgd(model)

    def step(_: int) -> Tensor:
        update.zero_grad()
        loss = functional.cross_entropy(model(clips), labels)
        loss.backward()
        update.step()
        return loss.detach()

    return Program(model, step)


def graph(where: Where) -> Program:
    """GraphSAGE on a random graph, all of it in every step."""
    layers = import_package("torch_geometric.nn")
    nodes, edges, width = (200, 800, 16) if where.tiny else (200_000, 2_000_000, 256)
    model = layers.GraphSAGE(width, width, num_layers=3, out_channels=47, dropout=0.5)
    model = model.to(where.device).train()
    x = torch.randn(nodes, width).to(where.device)
    ends = torch.randint(nodes, (2, edges)).to(where.device)
    labels = torch.randint(47, (nodes,)).to(where.device)
    update = adamw(model)

    def step(_: int) -> Tensor:
        update.zero_grad()
        loss = functional.cross_entropy(model(x, ends), labels)
        loss.backward()
        update.step()
        return loss.detach()

    return Program(model, step)


def recurrent(where: Where) -> Program:
    """A word model of LSTM layers."""
    words, width, batch, length = (200, 16, 2, 8) if where.tiny else (33278, 1024, 64, 140)

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.layers = nn.LSTM(width, width, 2, dropout=0.3, batch_first=True)
            self.out = nn.Linear(width, words)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.layers(self.embed(tokens))[0])

    model = Words().to(where.device).train()
    tokens = torch.randint(words, (batch, length + 1)).to(where.device)
    update = adamw(model)

    def step(_: int) -> Tensor:
        update.zero_grad()
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        update.step()
        return loss.detach()

    return Program(model, step)


def adversarial(where: Where) -> Program:
    """A DCGAN: generator and discriminator take turns."""
    side, width, batch = (16, 8, 4) if where.tiny else (64, 128, 1024)
    ups, channels = [], width * 8
    ups += [nn.ConvTranspose2d(100, channels, 4, 1, 0), nn.BatchNorm2d(channels), nn.ReLU(True)]
    downs: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    size, wide = 4, width
    while size < side // 2:
        ups += [nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1)]
        ups += [nn.BatchNorm2d(channels // 2), nn.ReLU(True)]
        downs += [nn.Conv2d(wide, wide * 2, 4, 2, 1), nn.BatchNorm2d(wide * 2)]
        downs += [nn.LeakyReLU(0.2, True)]
        channels, wide, size = channels // 2, wide * 2, size * 2
    ups += [nn.ConvTranspose2d(channels, 3, 4, 2, 1), nn.Tanh()]
    downs += [nn.Conv2d(wide, 1, 4, 1, 0), nn.Flatten()]
    both = nn.ModuleList([nn.Sequential(*ups), nn.Sequential(*downs)]).to(where.device).train()
    generator, judge = both
    real = torch.randn(batch, 3, side, side).to(where.device)
    updates = [adamw(generator), adamw(judge)]
    loss_of = functional.binary_cross_entropy_with_logits

    def step(_: int) -> Tensor:
        made = generator(torch.randn(batch, 100, 1, 1, device=where.device))
        updates[1].zero_grad()
        seen, faked = judge(real), judge(made.detach())
        bad = loss_of(seen, torch.ones_like(seen)) + loss_of(faked, torch.zeros_like(faked))
        bad.backward()
        updates[1].step()
        updates[0].zero_grad()
        fooled = judge(made)
        loss = loss_of(fooled, torch.ones_like(fooled))
        loss.backward()
        updates[0].step()
        return loss.detach() + bad.detach()

    return Program(both, step)


def diffusion(where: Where) -> Program:
    """A denoiser on a vision transformer of timm's, with an average of its weights."""
    timm = import_package("timm")
    name = "vit_tiny_patch16_224" if where.tiny else "vit_base_patch16_224"
    side, batch = (64, 2) if where.tiny else (224, 64)
    tiny = {"depth": 2} if where.tiny else {}
    model = timm.create_model(name, num_classes=0, img_size=side, global_pool="", **tiny)
    patches = (side // 16) ** 2
    head = nn.Linear(model.num_features, 3 * 16 * 16)
    both = nn.ModuleList([model, head]).to(where.device).train()
    average = torch.optim.swa_utils.AveragedModel(
        both, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    images = torch.randn(batch, 3, side, side).to(where.device)
    update = adamw(both)

    def step(_: int) -> Tensor:
        noise = torch.randn_like(images)
        level = torch.rand(batch, 1, 1, 1, device=where.device)
        update.zero_grad()
        with where.autocast():
            found = head(model(images * (1 - level) + noise * level)[:, -patches:])
            wanted = functional.unfold(noise, 16, stride=16).transpose(1, 2)
            loss = functional.mse_loss(found.float(), wanted)
        loss.backward()
        update.step()
        average.update_parameters(both)
        return loss.detach()

    return Program(nn.ModuleList([both, average.module]), step)


def fine_tuned(where: Where) -> Program:
    """A Llama of which only low-rank factors are trained, over checkpointed layers."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    tiny |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256}
    model = transformers("LlamaForCausalLM", "LlamaConfig", sizes, tiny)(where).bfloat16()
    model.requires_grad_(False)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()

    class LowRank(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner = inner
            self.down = nn.Parameter(torch.randn(8, inner.in_features) * 0.01)
            self.up = nn.Parameter(torch.zeros(inner.out_features, 8))

        def forward(self, x: Tensor) -> Tensor:
            small = functional.linear(functional.dropout(x, 0.05), self.down.to(x.dtype))
            return self.inner(x) + functional.linear(small, self.up.to(x.dtype))

    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, LowRank(getattr(layer.self_attn, name)))
    model.to(where.device)
    trained = [p for p in model.parameters() if p.requires_grad]
    tokens = torch.randint(model.config.vocab_size, (2, 32) if where.tiny else (8, 1024))
    tokens = tokens.to(where.device)
    update = torch.optim.AdamW(trained, lr=1e-4)

    def step(_: int) -> Tensor:
        update.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        update.step()
        return loss.detach()

    return Program(model, step)


def quasi_newton(where: Where) -> Program:
    """A small network trained by L-BFGS."""
    width, batch = (32, 16) if where.tiny else (4096, 8192)
    layers = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(where.device)
    x = torch.randn(batch, width).to(where.device)
    y = torch.randn(batch, 1).to(where.device)
    update = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5, history_size=6)

    def closure() -> Tensor:
        update.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return Program(model, lambda _: update.step(closure).detach())

"""A Llama decoder: RMS norms, rotary positions, grouped queries, gated SiLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.models.blocks import run_block


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a decoder. The defaults are TinyLlama's: 1,100,048,384 parameters."""

    width: int = 2048
    layers: int = 22
    heads: int = 32
    kv_heads: int = 4
    hidden: int = 5632
    vocabulary: int = 32000
    theta: float = 10000.0
    eps: float = 1e-5

    @property
    def head_width(self) -> int:
        """Channels per head."""
        return self.width // self.heads


class RmsNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (x * scale)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`x` with its pairs of channels (i, i + half) turned by the angle of its position."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosine + turned * sine


class Attention(nn.Module):
    """Causal attention with fewer key-value heads than query heads."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        kv_width = shape.kv_heads * shape.head_width
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            proj(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention, then the feed-forward part, each behind a norm and beside a residual."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = RmsNorm(shape.width, shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.eps)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """N x L token ids to N x L x vocabulary scores."""

    def __init__(self, shape: LlamaShape | None = None) -> None:
        super().__init__()
        self.shape = shape or LlamaShape()
        self.checkpointing = False
        self.embed_tokens = nn.Embedding(self.shape.vocabulary, self.shape.width)
        self.layers = nn.ModuleList(DecoderLayer(self.shape) for _ in range(self.shape.layers))
        self.norm = RmsNorm(self.shape.width, self.shape.eps)
        self.lm_head = nn.Linear(self.shape.width, self.shape.vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def _positions(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        half = self.shape.head_width // 2
        with torch.autocast(device.type, enabled=False):
            exponent = torch.arange(half, device=device, dtype=torch.float32) / half
            angle = torch.outer(
                torch.arange(length, device=device, dtype=torch.float32),
                self.shape.theta**-exponent,
            )
            angle = torch.cat((angle, angle), dim=-1)
            return angle.cos(), angle.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        cosine, sine = self._positions(tokens.shape[1], tokens.device)
        for layer in self.layers:
            x = run_block(layer, x, cosine, sine, checkpointing=self.checkpointing)
        return self.lm_head(self.norm(x))


def next_token_loss(scores: Tensor, following: Tensor) -> Tensor:
    """Mean cross-entropy in single precision; positions whose target is -100 do not count."""
    return functional.cross_entropy(scores.float().flatten(0, 1), following.flatten())

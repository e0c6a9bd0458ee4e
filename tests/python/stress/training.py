"""Programs: whole training runs of small networks."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import checkpoint

from .networks import ResNet18, Transformer, UNet3d, mlp
from .registry import Result, data, gradients, labels, program, seed, summary, train


def _resnet(device: str, dtype: torch.dtype | None, channels_last: bool = False) -> Result:
    seed()
    model = ResNet18().to(device)
    x, y = data(4, 3, 64, 64, device=device), labels(4, 10, device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    kind = torch.device(device).type

    def loss_of(step: int) -> Tensor:
        with torch.autocast(kind, dtype) if dtype else contextlib.nullcontext():
            return functional.cross_entropy(model(x), y)

    losses = train(model, optimizer, loss_of, steps=2)
    return summary(model, optimizer, losses=losses)


@program()
def resnet18_fp32(device: str) -> Result:
    """Convolutions, batch norm, in-place ReLU, shared shortcuts."""
    return _resnet(device, None)


@program()
def resnet18_bf16_autocast(device: str) -> Result:
    """The same with the cast cache of autocast."""
    return _resnet(device, torch.bfloat16)


@program()
def resnet18_channels_last(device: str) -> Result:
    """The same with permuted strides."""
    return _resnet(device, None, channels_last=True)


@program()
def resnet18_fp16_grad_scaler(device: str) -> Result:
    """Loss scaling: ``found_inf``, unscaling over lists, skipped steps."""
    seed()
    model = ResNet18(width=8).to(device)
    x, y = data(4, 3, 64, 64, device=device), labels(4, 10, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    kind = torch.device(device).type
    dtype = torch.float16 if kind == "cuda" else torch.bfloat16
    # The first scale overflows, so that a skipped step is among those compared.
    scaler = torch.amp.GradScaler(
        kind, init_scale=2.0**127 if kind == "cpu" else 2.0**24, growth_interval=2
    )
    losses, scales = [], []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses += [loss.detach(), norm]
        scales.append(scaler.get_scale())
    return summary(model, optimizer, losses=losses, scales=scales)


def _transformer(device: str, dropout: float, **options: bool) -> Result:
    seed()
    model = Transformer(dropout=dropout).to(device)
    tokens = labels(2 * 65, 96, device).view(2, 65)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, **options)

    def loss_of(step: int) -> Tensor:
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    losses = train(model, optimizer, loss_of)
    return summary(model, optimizer, losses=losses)


@program()
def transformer_dropout_fused_adamw(device: str) -> Result:
    """Dropout's generator state, tied embeddings, and a fused optimizer over lists."""
    return _transformer(device, 0.2, fused=True)


@program()
def transformer_foreach_adamw(device: str) -> Result:
    """The list form of the same optimizer."""
    return _transformer(device, 0.0, foreach=True)


@program()
def flash_attention(device: str) -> Result:
    """Flash attention forward and backward: its log-sum-exp and its generator state are saved."""
    seed()
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    q, k, v = (
        data(2, 4, 128, 32, device=device, value=i, dtype=dtype).requires_grad_() for i in range(3)
    )
    backends = [torch.nn.attention.SDPBackend.FLASH_ATTENTION]
    with torch.nn.attention.sdpa_kernel(backends):
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        z = functional.scaled_dot_product_attention(q, k, y)
    z.square().sum().backward()
    return {"y": y, "z": z, "grads": [q.grad, k.grad, v.grad]}


@program()
def lstm(device: str) -> Result:
    """A two-layer LSTM with dropout: cuDNN keeps its weights in one flat buffer."""
    seed()
    model = nn.LSTM(32, 48, 2, batch_first=True, dropout=0.3, bidirectional=True).to(device)
    head = nn.Linear(96, 7).to(device)
    x, y = data(4, 24, 32, device=device), labels(4, 7, device)
    both = nn.ModuleList([model, head])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-2)

    def loss_of(step: int) -> Tensor:
        hidden, _ = model(x)
        return functional.cross_entropy(head(hidden[:, -1]), y)

    losses = train(both, optimizer, loss_of)
    return summary(both, optimizer, losses=losses)


@program()
def gru_packed_sequence(device: str) -> Result:
    """A GRU over sequences of several lengths."""
    seed()
    model = nn.GRU(32, 48, batch_first=True).to(device)
    x = data(4, 40, 32, device=device)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([40, 31, 22, 9]), batch_first=True)
    out, hidden = model(packed)
    padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    (padded.square().mean() + hidden.sum()).backward()
    return summary(model, out=padded, hidden=hidden)


@program()
def unet3d(device: str) -> Result:
    """3-D convolutions, their transposes, and a skip connection that lives across the step."""
    seed()
    model = UNet3d().to(device)
    x = data(1, 1, 16, 16, 16, device=device)
    y = labels(16**3, 3, device).view(1, 16, 16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.99, nesterov=True)
    losses = train(model, optimizer, lambda step: functional.cross_entropy(model(x), y), steps=2)
    return summary(model, optimizer, losses=losses)


@program()
def embedding_dense(device: str) -> Result:
    """Dense embedding and embedding bag."""
    seed()
    table = nn.Embedding(300, 32, padding_idx=0).to(device)
    bag = nn.EmbeddingBag(300, 32, mode="mean").to(device)
    both = nn.ModuleList([table, bag])
    optimizer = torch.optim.Adagrad(both.parameters(), lr=0.1)
    index = labels(256, 300, device).view(16, 16)
    losses = train(both, optimizer, lambda step: (table(index).sum(1) * bag(index)).square().mean())
    return summary(both, optimizer, losses=losses)


@program()
def embedding_sparse(device: str) -> Result:
    """Sparse gradients and the optimizers that take them."""
    seed()
    table = nn.Embedding(300, 32, sparse=True).to(device)
    other = nn.Embedding(300, 32, sparse=True).to(device)
    adam = torch.optim.SparseAdam(table.parameters(), lr=0.01)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    index = labels(128, 300, device)
    losses = []
    for _ in range(3):
        adam.zero_grad()
        sgd.zero_grad()
        loss = (table(index) * other(index.flip(0))).square().sum()
        loss.backward()
        adam.step()
        sgd.step()
        losses.append(loss.detach())
    return {
        "table": table.weight,
        "other": other.weight,
        "grad": table.weight.grad,
        "losses": losses,
    }


@program()
def batch_norm_train_eval(device: str) -> Result:
    """Running statistics across training and evaluation."""
    seed()
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32, momentum=None), nn.ReLU()).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(4):
        x = data(4, 3, 16, 16, device=device, value=step)
        model.train(step % 2 == 0)
        y = model(x)
        seen += [y.detach().clone(), model[1].running_mean.clone(), model[1].running_var.clone()]
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
    return summary(model, optimizer, seen=seen)


@program()
def gradient_accumulation(device: str) -> Result:
    """Several backward passes into one gradient, then one step."""
    seed()
    model = mlp().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(2):
        optimizer.zero_grad(set_to_none=False)
        for part in range(3):
            x = data(32, 64, device=device, value=10 * step + part)
            loss = (model(x) - x).square().mean() / 3
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return summary(model, optimizer, losses=losses)


@program()
def validation_no_grad_inference_mode(device: str) -> Result:
    """Validation in mid-training, under ``no_grad`` and under ``inference_mode``."""
    seed()
    model = ResNet18(width=8).to(device)
    x, y = data(4, 3, 64, 64, device=device), labels(4, 10, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outputs = []
    for _ in range(2):
        outputs += train(
            model.train(), optimizer, lambda _: functional.cross_entropy(model(x), y), steps=1
        )
        model.eval()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                logits = model(x)
                logits += 1
                outputs.append(logits.clone())
    return summary(model, optimizer, outputs=outputs)


def _checkpointed(device: str, reentrant: bool) -> Result:
    seed()
    layers = nn.ModuleList(nn.Sequential(mlp(), nn.Dropout(0.2)) for _ in range(3)).to(device)
    optimizer = torch.optim.Adam(layers.parameters())

    def loss_of(step: int) -> Tensor:
        x = data(32, 64, device=device, value=step).requires_grad_()
        for layer in layers:
            x = checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
        return x.square().mean()

    losses = train(layers, optimizer, loss_of)
    return summary(layers, optimizer, losses=losses)


@program()
def checkpointing(device: str) -> Result:
    """Activation checkpointing: forward runs again inside backward, generator state included."""
    return _checkpointed(device, reentrant=False)


@program()
def checkpointing_reentrant(device: str) -> Result:
    """The older form, a backward pass nested in a backward pass."""
    return _checkpointed(device, reentrant=True)


@program()
def double_backward(device: str) -> Result:
    """A gradient penalty: backward through backward."""
    seed()
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(4096, 1)
    )
    model = model.to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def loss_of(step: int) -> Tensor:
        x = data(4, 3, 16, 16, device=device, value=step).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()

    losses = train(model, optimizer, loss_of)
    return summary(model, optimizer, losses=losses)


@program()
def retain_graph(device: str) -> Result:
    """One graph walked three times."""
    seed()
    model = mlp().to(device)
    y = model(data(32, 64, device=device))
    first = torch.autograd.grad(y.sum(), list(model.parameters()), retain_graph=True)
    y.square().mean().backward(retain_graph=True)
    y.mean().backward()
    return summary(model, first=first)


@program()
def hooks_that_save(device: str) -> Result:
    """Module, tensor and saved-tensor hooks that keep what they see, and read it later."""
    seed()
    model = mlp().to(device)
    kept: list[Tensor] = []
    unpacked: list[Tensor] = []
    model[0].register_forward_hook(lambda module, args, out: kept.append(out))
    model[2].register_full_backward_hook(lambda module, gin, gout: kept.extend(gout))

    def pack(tensor: Tensor) -> Tensor:
        return tensor.clone()

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        x = data(32, 64, device=device).requires_grad_()
        hidden = model(x)
    hidden.register_hook(lambda grad: grad * 2)
    hidden.retain_grad()
    hidden.square().mean().backward()
    return summary(model, kept=kept, unpacked=unpacked, hidden=hidden.grad, x=x.grad)


@program()
def optimizer_in_backward(device: str) -> Result:
    """One optimizer a weight, stepped as soon as its gradient is final."""
    seed()
    model = mlp().to(device)
    optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}

    def step_now(p: Tensor) -> None:
        optimizers[p].step()
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(step_now) for p in model.parameters()]
    losses = []
    for step in range(3):
        x = data(32, 64, device=device, value=step)
        loss = (model(x) - x).square().mean()
        loss.backward()
        losses.append(loss.detach())
    for hook in hooks:  # they are in a cycle that nobody collects
        hook.remove()
    state = [dict(sorted(o.state[p].items())) for p, o in optimizers.items()]
    return {"weights": dict(model.state_dict()), "state": state, "losses": losses}


@program()
def exception_in_mid_step(device: str) -> Result:
    """A forward pass that fails halfway is thrown away, and training goes on."""
    seed()
    model = mlp().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for step in range(4):
        x = data(32, 64, device=device, value=step)
        optimizer.zero_grad()
        try:
            hidden = model[2](model[1](model[0](x)))
            if step == 1:
                torch.mm(hidden, hidden)
            loss = (model[4](model[3](hidden)) - x).square().mean()
            if step == 2:
                loss.register_hook(_fail)
            loss.backward()
        except (RuntimeError, ValueError) as error:
            losses.append(type(error).__name__)
            continue
        optimizer.step()
        losses.append(loss.detach())
    return summary(model, optimizer, losses=losses)


def _fail(grad: Tensor) -> Tensor:
    raise ValueError("a hook failed")


@program()
def save_on_cpu(device: str) -> Result:
    """PyTorch's own offloading of saved tensors, beside ours."""
    seed()
    model = mlp().to(device)
    with torch.autograd.graph.save_on_cpu(pin_memory=device.startswith("cuda")):
        loss = model(data(32, 64, device=device)).square().mean()
    loss.backward()
    return {"loss": loss, "grads": gradients(model)}

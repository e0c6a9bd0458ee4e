"""Golden numbers of reference models in PyTorch, in float64: see README.md here.

    generate_torch.py resnet50
    generate_torch.py deeplabv3plus FOLDER    a checkout of jfzhang95/pytorch-deeplab-xception
    generate_torch.py gscnn FOLDER            a checkout of nv-tlabs/GSCNN
    generate_torch.py canny

With --float32 FOLDER at the end: in float32, written to that folder.
"""

import pathlib
import sys
import types

import numpy as np
import procedural
import torch
from torch.nn import functional

TO = pathlib.Path(__file__).parent
TYPE = torch.float64


def prepare(model: torch.nn.Module) -> torch.nn.Module:
    """In training, but without dropout, with procedural weights."""
    for name, parameter in model.named_parameters():
        values = procedural.parameter(name, tuple(parameter.shape))
        parameter.data = torch.from_numpy(values).to(TYPE)
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout, torch.nn.Dropout2d)):
            module.p = 0.0
    return model.to(TYPE).train()


def golden(model, name, variants, shape, outputs, loss) -> dict:
    """Runs the backward pass and keeps its numbers."""
    loss.backward()
    modules: dict[str, int] = {}
    gradients = {}
    for key, parameter in model.named_parameters():
        module = key.split(".")[0]
        modules[module] = modules.get(module, 0) + parameter.numel()
        if parameter.grad is not None:
            gradients[key] = procedural.gradient(key, parameter.grad.numpy())
    return {
        "model": name,
        "variants": variants,
        "type": str(TYPE).removeprefix("torch."),
        "input": list(shape),
        "parameters": sum(modules.values()),
        "modules": modules,
        "loss": loss.item(),
        "outputs": [procedural.summary(o.detach().numpy()) for o in outputs],
        "gradients": gradients,
    }


def save(name: str, numbers: dict) -> None:
    procedural.save(str(TO / f"{name}.json"), numbers)
    print(name, numbers["parameters"], numbers["loss"])


def image(shape) -> torch.Tensor:
    return torch.from_numpy(procedural.picture(shape)).to(TYPE)


def resnet50() -> None:
    import torchvision

    shape = (2, 3, 70, 61)
    model = prepare(torchvision.models.resnet50(num_classes=15))
    output = model(image(shape))
    target = torch.from_numpy(procedural.classes(2, 15))
    loss = functional.cross_entropy(output, target)
    numbers = golden(model, "resnet50", {}, shape, [output], loss)
    save("resnet50", {**numbers, "classes": 15})


def deeplabv3plus(folder: str) -> None:
    sys.path.insert(0, folder)
    from modeling.backbone import xception
    from modeling.deeplab import DeepLab

    original = xception.AlignedXception.__init__

    def without_download(self, *args, **kwargs):
        original(self, *args, **{**kwargs, "pretrained": False})

    xception.AlignedXception.__init__ = without_download

    def run(file, shape, output_stride, shortcut):
        model = prepare(DeepLab("xception", output_stride, 21, sync_bn=False))
        if shortcut == "paper":
            for module in model.backbone.modules():
                if isinstance(module, torch.nn.ReLU):
                    module.inplace = False
        output = model(image(shape))
        target = torch.from_numpy(procedural.labels((shape[0], *shape[2:]), 21))
        loss = functional.cross_entropy(output, target, ignore_index=255)
        variants = {"output_stride": str(output_stride), "shortcut": shortcut}
        save(file, golden(model, "deeplabv3plus", variants, shape, [output], loss))

    # So wide that every rate of the pyramid reaches beyond the middle.
    run("deeplabv3plus_os16", (2, 3, 9, 305), 16, "released")
    run("deeplabv3plus_os8_paper", (2, 3, 9, 305), 8, "paper")


class OldNllLoss(torch.nn.Module):
    """NLLLoss2d as it was in PyTorch 1.0: 0 where every pixel is ignored."""

    def __init__(self, weight=None, size_average=True, ignore_index=-100):
        super().__init__()
        self.weight = weight
        self.ignore_index = ignore_index

    def forward(self, log_p, target):
        if (target == self.ignore_index).all():
            return log_p.sum() * 0.0
        weight = self.weight.to(log_p.dtype)
        return functional.nll_loss(log_p, target, weight, ignore_index=self.ignore_index)


def old_environment() -> None:
    """What the released code of Gated-SCNN expects of PyTorch 1.0, NumPy 1.15 and a GPU."""
    config = types.ModuleType("config")
    config.cfg = types.SimpleNamespace(
        MODEL=types.SimpleNamespace(BNFUNC=torch.nn.BatchNorm2d), BATCH_WEIGHTING=False
    )
    sys.modules["config"] = config
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    torch.nn.NLLLoss2d = OldNllLoss
    histogram = np.histogram

    def with_normed(values, bins, normed=False):
        counts, edges = histogram(values, bins=list(bins))
        return (counts / max(counts.sum(), 1) if normed else counts), edges

    np.histogram = with_normed


def gscnn(folder: str) -> None:
    old_environment()
    sys.path.insert(0, folder)
    import cv2
    import loss as losses
    from my_functionals import DualTaskLoss as dual_task
    from my_functionals import custom_functional
    from network.gscnn import GSCNN

    target = torch.from_numpy(procedural.labels((2, 40, 33), 19))

    def dense(function):  # the operators of old gave dense results
        return lambda *args, **kwargs: function(*args, **kwargs).contiguous()

    # The parts of the loss on their own, first as released.
    dual_task.compute_grad_mag = dense(custom_functional.compute_grad_mag)
    scores = torch.from_numpy(procedural.uniform("scores", 2 * 19 * 40 * 33) * 3)
    scores = scores.view(2, 19, 40, 33).requires_grad_()
    torch.manual_seed(7)
    released = dual_task.DualTaskLoss()(scores, target)
    released.backward()
    parts = {"dual_task_released": released.item()}
    parts["dual_task_released_gradient"] = procedural.gradient("scores", scores.grad.numpy())

    # Then as the paper has it: the released functions with their early returns taken away.
    source = pathlib.Path(custom_functional.__file__).read_text()
    for early in ("    return input, input\n", "    return input\n    f = "):
        assert source.count(early) == 1
        source = source.replace(early, "    f = " if "f =" in early else "")
    paper = types.ModuleType("paper")
    exec(compile(source, "paper", "exec"), paper.__dict__)
    conv2d = functional.conv2d

    def any_type(values, kernel, *args, **kwargs):
        return conv2d(values, kernel.to(values.dtype), *args, **kwargs)

    paper.F = types.SimpleNamespace(pad=functional.pad, conv2d=any_type)
    dual_task.compute_grad_mag = dense(paper.compute_grad_mag)
    scores.grad = None
    torch.manual_seed(7)
    loss = dual_task.DualTaskLoss()(scores, target)
    loss.backward()
    parts["dual_task_paper"] = loss.item()
    parts["dual_task_paper_gradient"] = procedural.gradient("scores", scores.grad.numpy())
    dual_task.compute_grad_mag = dense(custom_functional.compute_grad_mag)

    shape = (2, 3, 9, 297)  # so wide that every rate of the pyramid reaches beyond the middle
    criterion = losses.JointEdgeSegLoss(19)
    target = torch.from_numpy(procedural.labels((2, 9, 297), 19))
    edge_target = torch.from_numpy(procedural.binary("edges", (2, 1, 9, 297))).float()
    model = prepare(GSCNN(19, criterion=criterion))
    kept = {}

    def keep(outputs, targets):
        kept["outputs"] = outputs
        return criterion(outputs, targets)

    del model._modules["criterion"]
    object.__setattr__(model, "criterion", keep)
    torch.manual_seed(11)
    terms = model(image(shape), (target, edge_target))
    edges = kept["outputs"][1]
    margin = (edges - 0.8).abs().min().item()
    sure = (edges > 0.8).float().mean().item()
    print("edges above 0.8:", sure, "least distance:", margin)
    assert 0.01 < sure < 0.9 and margin > 1e-5
    canny = [
        cv2.Canny(im.astype(np.uint8), 10, 100)
        for im in procedural.picture(shape).transpose(0, 2, 3, 1)
    ]
    parts["canny"] = int(np.count_nonzero(canny))
    for term, value in terms.items():
        parts[term] = value.item()
    numbers = golden(model, "gscnn", {}, shape, kept["outputs"], sum(terms.values()))
    save("gscnn", {**numbers, "parts": parts})


def canny() -> None:
    import cv2

    cases = []
    pictures = [(24, 31, 3, 5, 16), (37, 20, 1, 7, 8), (16, 50, 3, 1, 256), (33, 33, 3, 9, 0)]
    for index, (height, width, channels, cell, noise) in enumerate([*pictures, (1, 9, 3, 2, 4)]):
        cells = (-(-height // cell), -(-width // cell), channels)
        coarse = (procedural.uniform(f"cells{index}", int(np.prod(cells))) + 1.0) * 120.0
        pixels = np.kron(coarse.reshape(cells), np.ones((cell, cell, 1)))[:height, :width]
        fine = procedural.uniform(f"noise{index}", pixels.size).reshape(pixels.shape)
        pixels = np.clip(np.floor(pixels + fine * noise), 0, 255).astype(np.uint8)
        edges = cv2.Canny(np.ascontiguousarray(pixels), 10, 100)
        cases.append(
            {
                "size": [height, width, channels],
                "cell": cell,
                "noise": noise,
                "edges": np.packbits(edges > 0).tobytes().hex(),
            }
        )
        print(cases[-1]["size"], "edges:", int((edges > 0).sum()))
    procedural.save(str(TO / "canny.json"), {"cases": cases})


if __name__ == "__main__":
    if "--float32" in sys.argv:
        TYPE, TO = torch.float32, pathlib.Path(sys.argv.pop())
        sys.argv.remove("--float32")
    globals()[sys.argv[1]](*sys.argv[2:])

"""Plans are kept on disk: the same training begins planned when it is started again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.pinned

ROOT = Path(__file__).resolve().parents[2]

TRAINING = """
import sys
sys.path[:0] = [{package!r}]
import torch
import torch_lms

folder, batch = sys.argv[1], int(sys.argv[2])
torch_lms.enable(limit=1_300_000, device="cpu", min_block=1, plan="now", plan_seconds=0.3,
                 plan_cache=folder)
torch.manual_seed(1)
net = torch.nn.Sequential(*[m for _ in range(8)
                            for m in (torch.nn.Linear(64, 64), torch.nn.GELU())])
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
losses = []
for _ in range(12):
    optimizer.zero_grad()
    loss = net(torch.randn(batch, 64)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
stats = torch_lms.memory_stats()
print(stats["plan.planned"], stats["plan.kept"], stats["plan.divergences"], *losses)
"""


def train(folder: str, batch: int = 256) -> list[str]:
    """Planned, kept, divergences, and the losses."""
    script = TRAINING.format(package=str(ROOT / "python"))
    done = subprocess.run(
        [*forked.command(), "-c", script, folder, str(batch)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_the_next_start_begins_planned(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    first = train(str(folder))
    assert first[:3] == ["1", "0", "0"]
    assert list(folder.iterdir()), "the plan has been kept"
    second = train(str(folder))
    assert second[:3] == ["1", "1", "0"]
    assert second[3:] == first[3:], "the same bits"

    other = train(str(folder), batch=224)
    assert other[:2] == ["1", "0"], "another step: another plan"

    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    damaged = train(str(folder))
    assert damaged[:2] == ["1", "0"], "a damaged file is no plan, and no error"
    assert damaged[3:] == first[3:]


@pytest.mark.slow
def test_off_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert train("off")[:2] == ["1", "0"]
    assert not list(tmp_path.iterdir())

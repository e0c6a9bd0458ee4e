"""CPU time per operator under LMS, and what planning adds to it: runs `lms_hook_cost`, a C++
program, and adds to its result where it was measured.

    cmake --build build --target lms_hook_cost
    python lab/bench/hook_cost.py --program build/lab/bench/lms_hook_cost --device cpu
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records


def main(argv: list[str] | None = None) -> int:
    """Carry out the command line; the program's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--program", type=Path, default=records.ROOT / "build/lab/bench/lms_hook_cost", help="built"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--bytes", type=int, help="of each tensor (4 KiB; on a GPU 1 MiB)")
    parser.add_argument("--samples", type=int, help="of each mode (200)")
    parser.add_argument("--out", type=Path, help="default: lab/results/hook-cost-DEVICE.json")
    given = parser.parse_args(argv)
    kind = given.device.split(":")[0]
    out = given.out or records.ROOT / f"lab/results/hook-cost-{kind}.json"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [str(given.program), "--device", given.device, "--json", str(file)]
        for name in ("bytes", "samples"):
            if getattr(given, name) is not None:
                command += [f"--{name}", str(getattr(given, name))]
        status = subprocess.run(command, check=False).returncode
        if not file.exists():
            return status or 1
        result = json.loads(file.read_text())
    commit, dirty = records.commit()
    facts = {"machine": records.machine(kind), "commit": commit, "commit_dirty": dirty}
    records.write(facts | result, out)
    return status


if __name__ == "__main__":
    sys.exit(main())

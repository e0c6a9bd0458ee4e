"""``lms run`` and ``python -m torch_lms run``: programs under LMS, as Python would start them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import forked
import pytest
import torch

import torch_lms
from torch_lms import _ranks, _run

ROOT = Path(__file__).resolve().parents[2]
AS_MODULE = ("-m", "torch_lms", "run")
AS_SCRIPT = ("-c", "import sys; from torch_lms_tool.main import main; sys.exit(main())", "run")


def run(
    *words: str, how: tuple[str, ...] = AS_MODULE, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "LMS_VERIFY"}
    variables["PYTHONPATH"] = str(ROOT / "python")
    variables.update(LMS_DEVICE="cpu", **environ)
    command = [*forked.command(), *how, *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=variables, cwd=cwd, timeout=300
    )


@pytest.fixture
def script(tmp_path: Path):
    """Writes a program; gives its path."""

    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


PRINTS = """
    import sys, torch_lms
    print(torch_lms.devices(), torch_lms.get_limit() >> 20, sys.argv[1:], __name__)
"""


@pytest.mark.parametrize("how", [AS_MODULE, AS_SCRIPT])
def test_a_script_finds_lms_enabled(script, how) -> None:
    path = script(PRINTS)
    ran = run("--limit", "96MiB", path, "--limit", "3", "-x", how=how)
    assert ran.stdout == "['cpu'] 96 ['--limit', '3', '-x'] __main__\n", ran.stderr
    assert ran.stderr == ""
    ran = run("--limit=64M", "--log", "info", "--", path, "a", how=how)
    assert ran.stdout == "['cpu'] 64 ['a'] __main__\n", ran.stderr
    assert "under a limit of 64.0 MiB" in ran.stderr and "0 steps ran under a plan" in ran.stderr


def test_variables_count_and_options_beat_them(script) -> None:
    path = script(PRINTS)
    assert "'cpu'] 48 " in run(path, LMS_LIMIT="48MiB").stdout
    assert "'cpu'] 80 " in run("--limit", "80MiB", path, LMS_LIMIT="48MiB").stdout


def test_every_setting_is_an_option(script, tmp_path: Path) -> None:
    path = script("import torch_lms; print(torch_lms.get_min_block(), torch_lms.get_host_limit())")
    ran = run("--limit", "64MiB", "--min-block", "4KiB", "--host-limit", "1GiB", "--plan", "off",
              "--directory", str(tmp_path), "--recompute=off", path)  # fmt: skip
    assert ran.stdout == f"4096 {1 << 30}\n", ran.stderr


def test_the_script_is_as_python_would_run_it(script, tmp_path: Path) -> None:
    script("VALUE = 7", "beside.py")
    path = script("""
        import atexit, pickle, sys, threading
        import beside                                   # its own folder comes first
        class Thing: pass
        assert sys.modules["__main__"].Thing is Thing and __file__ == sys.argv[0]
        copy = lambda: pickle.loads(pickle.dumps(Thing()))
        atexit.register(lambda: print("exit", copy().__class__ is Thing))
        threading.Timer(0.2, lambda: print("thread", Thing, beside.VALUE)).start()
        print("main")
    """)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ran = run("--limit", "64MiB", path, cwd=elsewhere)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "main\nthread <class '__main__.Thing'> 7\nexit True\n"


def test_exit_statuses_and_exceptions_pass_through(script) -> None:
    assert run("--limit", "64MiB", script("import sys; sys.exit(5)")).returncode == 5
    ran = run("--limit", "64MiB", script("raise KeyError('mine')"))
    assert ran.returncode == 1 and "KeyError: 'mine'" in ran.stderr
    assert 'train.py", line 1' in ran.stderr


def test_a_module_and_a_folder(script, tmp_path: Path) -> None:
    script("from . import inner", "pack/__main__.py")
    script("", "pack/__init__.py")
    script("import sys, torch_lms; print(torch_lms.get_limit() >> 20, sys.argv[1:])",
           "pack/inner.py")  # fmt: skip
    ran = run("--limit", "64MiB", "-m", "pack", "-m", "x", cwd=tmp_path)
    assert ran.stdout == "64 ['-m', 'x']\n", ran.stderr
    script("import torch_lms, sibling; print(torch_lms.get_limit() >> 20)", "plain/__main__.py")
    script("", "plain/sibling.py")
    assert run("--limit", "64MiB", str(tmp_path / "plain")).stdout == "64\n"


def test_an_installed_program(script, tmp_path: Path) -> None:
    program = script(f"#!{sys.executable}\n" + textwrap.dedent(PRINTS), "bin/nnTrain")
    os.chmod(program, 0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    ran = run("--limit", "64MiB", "--", "nnTrain", "3d", PATH=path)
    assert ran.stdout == "['cpu'] 64 ['3d'] __main__\n", ran.stderr
    script("", "here/nnTrain/results.txt")  # a folder of the program's name, as it may leave one
    ran = run("--limit", "64MiB", "--", "nnTrain", "3d", PATH=path, cwd=tmp_path / "here")
    assert ran.stdout == "['cpu'] 64 ['3d'] __main__\n", ran.stderr


def test_a_program_that_another_replaces(script) -> None:
    """What takes its place is without LMS: that is said, once, and not of tries that fail."""
    path = script(
        """
        import os, sys
        os.environ["PATH"] = "/nowhere" + os.pathsep + os.path.dirname(sys.executable)
        try:
            os.execvp("no-such-program", ["no-such-program"])
        except FileNotFoundError:
            print("goes on", flush=True)
        name = os.path.basename(sys.executable)
        os.execvp(name, [name, "-c", "print('replaced')"])
        """
    )
    ran = run("--limit", "96MiB", path)
    assert ran.stdout == "goes on\nreplaced\n", ran.stderr
    assert ran.stderr.count("takes this program's place, without LMS") == 1
    assert "-m torch_lms run" in ran.stderr


def test_programs_of_others_are_refused(script, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name, first, words in (
        ("other", "#!/opt/other/bin/python3", r"another Python \(/opt/other/bin/python3\)"),
        ("shell", "#!/bin/sh", "is no Python program"),
        ("no-such-program-at-all", None, "neither a file here nor a program"),
    ):
        if first is not None:
            os.chmod(script(first + "\nprint('ran')\n", f"bin/{name}"), 0o755)
        with pytest.raises(_run.ProgramError, match=words):
            _run.find_program(name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "12", "x.py"], "was '12GiB' meant"),
        (["--limit", "12 parsecs", "x.py"], "unknown unit 'parsecs'"),
        (["--limits", "12GiB", "x.py"], "unrecognized arguments: --limits"),
        (["--limit", "64MiB"], "a program is missing"),
        (["--limit", "64MiB", "-m"], "a program is missing"),
        (["--limit"], "expected one argument"),
        (["--device", "tpu", "x.py"], "device: 'tpu' is not a device"),
        (["--nproc-per-node", "two", "x.py"], "use a number, or gpu"),
        (["--nproc-per-node", "2"], "a program is missing"),
        (["--nproc-per-node", "2", "--device", "cuda:1", "x.py"], "has the GPU of its rank"),
        (["--nproc-per-node", "2", "no-such-program-at-all"], "neither a file here nor"),
    ],
)
def test_mistakes_are_one_line_and_not_a_traceback(script, words, said, capsys) -> None:
    path = script("raise AssertionError", "x.py")
    with pytest.raises(SystemExit) as exit_:
        _run.main([path if word == "x.py" else word for word in words])
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err
    assert not torch_lms.is_enabled()


def test_what_does_not_fit_is_a_clear_error(script, monkeypatch) -> None:
    monkeypatch.setenv("LMS_SLICES", "parts")
    path = script("""
        import torch
        matrix = torch.ones(2048, 4096)
        matrix.matmul(matrix.T)
    """)
    ran = run("--limit", "40MiB", path)
    assert ran.returncode == 1
    assert "OutOfMemoryError: LMS: out of memory on cpu: operator aten::mm needs" in ran.stderr
    assert "the smallest limit that could work here is 48.0 MiB" in ran.stderr, ran.stderr


LOADS = """
    import sys, torch, torch_lms
    from torch.utils.data import DataLoader, Dataset

    context = sys.argv[2]

    class Squares(Dataset):
        def __len__(self): return 24
        def __getitem__(self, at):
            if context != "fork":               # a fork inherits what is there
                assert not torch_lms.is_enabled()
            return torch.full((256, 256), float(at)).square() / 500

    def main():
        torch.manual_seed(1)
        torch.set_num_threads(1)
        net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(),
                                  torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                                  torch.nn.Linear(1024, 256))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        # A worker that imports PyTorch takes longer than all steps.
        data = DataLoader(Squares(), batch_size=4, num_workers=2 if context == "fork" else 1,
                          multiprocessing_context=context, persistent_workers=context != "fork")
        for _ in range(2):
            for batch in data:
                optimizer.zero_grad()
                loss = (net(batch) - batch).square().mean()
                loss.backward()
                optimizer.step()
        torch.save([p.detach() for p in net.parameters()], sys.argv[1])
        moved = torch_lms.memory_stats().get("evictions", 0)
        print("moved" if moved > 0 else "all in memory")

    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
def test_data_loaders_work_and_the_bits_are_equal(script, tmp_path: Path) -> None:
    path, plain = script(LOADS), tmp_path / "plain.pt"
    ran = run(path, str(plain), "fork", how=())
    assert ran.stdout == "all in memory\n", ran.stderr
    for context in ("fork", "spawn", "forkserver"):
        managed = tmp_path / f"{context}.pt"
        ran = run("--limit", "24MiB", "--min-block", "4KiB", path, str(managed), context)
        assert ran.stdout == "moved\n", ran.stderr
        for one, other in zip(torch.load(plain), torch.load(managed), strict=True):
            assert one.numpy().tobytes() == other.numpy().tobytes(), context


RANKS = """
    import os, sys, torch, torch.distributed as dist, torch_lms
    dist.init_process_group("gloo")
    total = torch.ones(1 << 16) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    line = f"{dist.get_rank()} of {dist.get_world_size()}: {total[0].item()} "
    line += f"{torch_lms.devices()} {torch_lms.get_limit() >> 20} {sys.argv[1:]}"
    os.write(1, (line + "\\n").encode())  # at once: the ranks share the pipe
    dist.destroy_process_group()
    sys.exit(3 if sys.argv[1:] == ["fails"] else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [AS_MODULE, AS_SCRIPT])
def test_a_process_for_each_rank(script, tmp_path: Path, how) -> None:
    path = script(RANKS)
    ranks = {"PYTHON_EXEC": forked.executable(tmp_path / "python", OMP_NUM_THREADS="1"), "how": how}
    ran = run("--limit", "64MiB", "--nproc-per-node", "2", path, "--limit", "-x", **ranks)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [
        f"{rank} of 2: 3.0 ['cpu'] 64 ['--limit', '-x']" for rank in range(2)
    ]
    ran = run("--nproc-per-node=2", "-m", "train", "x", cwd=tmp_path, LMS_LIMIT="48MiB", **ranks)
    assert ran.returncode == 0, ran.stderr
    assert len([line for line in ran.stdout.splitlines() if line.endswith("48 ['x']")]) == 2
    ran = run("--limit", "64MiB", "--nproc-per-node", "2", "--", path, "fails", **ranks)
    assert ran.returncode == 1
    assert "exitcode  : 3" in ran.stderr


def test_cores_near_a_gpu(tmp_path: Path, monkeypatch) -> None:
    class Properties:
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x1B, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    assert _ranks.cores_near("cuda:1", tmp_path) == set()
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    (folder / "local_cpulist").write_text("0-2,8,10-11\n")
    assert _ranks.cores_near("cuda:1", tmp_path) == {0, 1, 2, 8, 10, 11}
    assert _ranks.cores_near("cpu", tmp_path) == set()
    (folder / "local_cpulist").write_text("\n")
    assert _ranks.cores_near("cuda:0", tmp_path) == set()


@pytest.mark.parametrize(("near", "left"), [({0, 99}, {0}), (set(), None), ({99}, None)])
def test_a_rank_runs_near_its_gpu_where_that_is_known(near, left, monkeypatch) -> None:
    bound = []
    monkeypatch.setattr(_ranks, "cores_near", lambda _: near)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(cores))
    _ranks.bind_to_gpu()
    assert bound == ([] if left is None else [left])


def test_programs_as_pip_writes_them() -> None:
    assert _run._is_python(b"#!/venv/bin/python\nimport sys\n")
    assert _run._is_python(b"#!/usr/bin/env python3\n")
    assert _run._is_python(b"#!/bin/sh\n'''exec' \"/long/bin/python\" \"$0\" \"$@\"\n' '''\n")
    assert not _run._is_python(b"#!/bin/sh\necho\n")
    assert not _run._is_python(b"\x7fELF")
    assert not _run._is_python(b"")


def test_own_options_end_where_the_program_begins() -> None:
    assert _run._split(["--limit", "1G", "a.py", "--x"]) == (["--limit", "1G"], ["a.py", "--x"])
    assert _run._split(["--limit=1G", "--", "-odd.py"]) == (["--limit=1G"], ["-odd.py"])
    assert _run._split(["-m", "a", "-m"]) == ([], ["-m", "a", "-m"])
    assert _run._split(["-h", "a.py"]) == (["-h"], ["a.py"])

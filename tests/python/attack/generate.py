"""Makes programs from seeds. A line is chosen to fit what the program holds, and run at once, so
making a program is also its plain run."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from . import templates
from .digest import Reader, has_its_bytes
from .execute import ENOUGH, Run, Trail
from .known import KNOWN_LINES, is_known
from .maker import Maker, NoFit
from .program import Action, Program
from .races import races

Weighted = list[tuple[float, str]]

_LARGEST = 96 << 10  # bytes of one tensor, times the scale
# PyTorch's allocator takes a GPU's memory in segments of 2 MiB and more, the arena in pages of 2.
_CUDA_SCALE = 256
_ARENA_SCALE = 64
_BALLAST = 128 << 20  # under smaller limits there is no arena
_TIGHT_SCALE = 4  # parts of less than 64 KiB are not cut


@dataclass
class Taste:
    """How often lines of each kind are tried in one program."""

    kinds: list[Weighted]
    weights: list[float]


_KINDS: list[tuple[str, Weighted, float]] = [
    ("factories", templates.FACTORIES, 3),
    ("pure", templates.PURE, 10),
    ("views", templates.VIEWS, 3),
    ("writes", templates.WRITES, 5),
    ("random", templates.RANDOM, 1),
    ("memory", templates.MEMORY, 4),
    ("slices", templates.SLICES, 1),
    ("pointers", templates.POINTERS, 1),
    ("autograd", templates.AUTOGRAD, 2),
    ("networks", templates.NETWORKS, 1.5),
    ("streams", templates.STREAMS, 2),
    ("failures", templates.FAILURES, 0.5),
]
# Of programs whose limits are below what one operator touches: most can run in slices.
_TIGHT: list[tuple[str, Weighted, float]] = [
    ("sliced", templates.SLICED, 12),
    ("sliced writes", templates.SLICED_WRITES, 8),
    ("factories", templates.FACTORIES, 2),
    ("pure", templates.PURE, 0.5),
    ("views", templates.VIEWS, 3),
    ("writes", templates.WRITES, 0.3),
    ("random", templates.RANDOM, 0.2),
    ("memory", templates.MEMORY, 2),
    ("slices", templates.SLICES, 0.3),
    ("pointers", templates.POINTERS, 0.5),
    ("autograd", templates.AUTOGRAD, 1),
    ("streams", templates.STREAMS, 2),
    ("failures", templates.FAILURES, 0.5),
]
_SHARED_READS = ("sliced",)  # of which threads may read main's tensors, too
_LOCAL = (
    "factories",
    "pure",
    "views",
    "writes",
    "memory",
    "sliced",
    "sliced writes",
)  # what threads may do: all their own
_SHARED = ("check()", "reclaim()", "gc.", "torch.manual_seed", "{l", "{v}", "normal_", "random_")
# Where whatever reads dropped memory unheard would end the process, or what has no meaning there.
_CPU_ONLY = ("byteswap", "untyped_storage()[", "F.one_hot", "take(")


def make(seed: int, reader: Reader, device: str = "cpu") -> tuple[Program, Trail]:
    """The program of a seed, and the trail of its plain run."""
    return _Making(seed, reader, device).make()


class _Making:
    def __init__(self, seed: int, reader: Reader, device: str) -> None:
        self.dice = random.Random(seed)
        self.program = Program(seed, device)
        self.run = Run(self.program, reader)
        self.scale = 1
        if device.startswith("cuda"):
            self.program.ballast = _BALLAST if seed % 4 else 0
            self.scale = _ARENA_SCALE if self.program.ballast else _CUDA_SCALE
        self.on_cpu = device == "cpu"
        self.tight = self.dice.random() < 0.3
        if self.tight and self.on_cpu:
            self.scale = self.dice.choice([1, _TIGHT_SCALE])
            self.program.threads = self.dice.choice([1, 1, 1, 2, 3])
            torch.set_num_threads(self.program.threads)
        self.unit = 4096 * self.scale
        self.maker = Maker(self.dice, self.run.names, scale=self.scale)
        self.maker.readable = "tuw"  # what threads have made is main's after they have ended
        self.taste = self.choose_taste()
        self.peak = 0
        self.with_graphs = 0  # the peak of a GPU, what is in nobody's name included
        self.at_first = 0 if self.on_cpu else torch.cuda.memory_allocated()
        self.largest = 0

    def choose_taste(self) -> Taste:
        dice, kinds, weights = self.dice, [], []
        for name, lines, weight in self.kinds():
            if name == "streams" and self.on_cpu:
                continue
            if name == "pointers" and not self.on_cpu:
                continue
            if name == "slices" and (is_known("storage_slices") or not self.on_cpu):
                continue
            kinds.append(lines)
            weights.append(weight * dice.choice([0, 0.3, 1, 1, 1, 3]) + 0.01)
        return Taste(kinds, weights)

    def kinds(self) -> list[tuple[str, Weighted, float]]:
        return _TIGHT if self.tight else _KINDS

    def make(self) -> tuple[Program, Trail]:
        dice, program = self.dice, self.program
        planned = dice.random() < 0.18
        for _ in range(dice.randint(2, 8)):
            self.add(program.prelude, templates.FACTORIES)
        self.fill(program.prelude, dice.randint(4, 14) if planned else dice.randint(8, 55))
        if planned:
            self.make_steps()
        self.choose_settings(planned)
        self.run.finish()
        trail = self.run.trail
        self.run.clear()
        return program, trail

    def make_steps(self) -> None:
        """A body that reads what there is, and binds names of its own."""
        dice, program, maker = self.dice, self.program, self.maker
        program.steps = dice.randint(9, 16)  # some seven pass before there is a plan
        maker.letter, maker.readable, maker.mine = "b", "tb", set()
        for _ in range(0 if self.tight else 2):
            self.add(program.body, templates.NETWORKS)
        self.fill(program.body, dice.randint(6, 20), plain=True)
        if dice.random() < 0.7:
            names = sorted(maker.mine & self.run.names.keys())
            for name in dice.sample(names, len(names) * 3 // 4):
                self.act(program.body, Action(f"del {name}"))
        maker.mine = None
        for step in range(program.steps):
            if step > 0:
                for action in program.body:
                    self.run.act(action)
            if dice.random() < (0.15 if step >= 7 else 0.02):
                extras: list[Action] = []
                self.fill(extras, dice.randint(1, 3))
                if extras:
                    program.extras[step] = extras

    def fill(self, actions: list[Action], count: int, plain: bool = False) -> None:
        """Adds so many lines; ``plain``: none that would make a step unlike others."""
        dice = self.dice
        for _ in range(count):
            chance = dice.random()
            if chance < (0.04 if self.tight else 0.02) and not plain:
                self.add_threads(actions)
            elif chance < 0.07 and not plain:
                self.add_control(actions)
            elif chance < 0.09 and not plain:
                self.add_parking(actions)
            else:
                kinds, weights = self.taste.kinds, self.taste.weights
                self.add(actions, dice.choices(kinds, weights)[0])

    def add(self, actions: list[Action], lines: Weighted, refused: tuple[str, ...] = ()) -> bool:
        """Adds a line of a kind, if one of a few tries fits."""
        for _ in range(4):
            template = self.dice.choices(lines, [weight for weight, _ in lines])[0][1]
            if any(part in template for part in refused):
                continue
            if any(part in template and is_known(name) for name, part in KNOWN_LINES.items()):
                continue
            if not self.on_cpu and any(part in template for part in _CPU_ONLY):
                continue
            try:
                code = self.maker.fill(template)
            except NoFit:
                continue
            if not self.on_cpu and races(code, self.run.names):
                continue
            pure = lines in (templates.PURE, templates.FACTORIES, templates.SLICED)
            self.act(actions, Action(code, pure))
            return True
        return False

    def act(self, actions: list[Action], action: Action) -> None:
        """Adds an action and runs it; what it has made too large is let go of again.

        Products of any size take minutes, or more than any limit that is tried: then the action is
        taken back."""
        before = dict(self.run.names)
        actions.append(action)
        if self.takes_too_much(action):
            actions.pop()
            self.run.trail.pop()
            self.run.names.clear()
            self.run.names.update(before)
            return
        names = self.run.names
        if self.maker.mine is not None:
            letter = self.maker.letter
            self.maker.mine |= {
                name
                for name, value in names.items()
                if name[0] == letter and name[1:].isdigit() and before.get(name) is not value
            }
        before.clear()
        total, seen = 0, set()
        for name, value in list(self.run.held().items()):
            if not isinstance(value, torch.Tensor):
                continue
            storage = value.untyped_storage()
            size = storage.nbytes()
            large = max(size, value.numel() * value.element_size()) > _LARGEST * self.scale
            # A resize that failed leaves a tensor behind that is larger than its storage.
            if large or not has_its_bytes(value):
                let_go = Action(f"del {name}")
                actions.append(let_go)
                self.run.act(let_go)
            elif storage._cdata not in seen and size >= self.unit:
                seen.add(storage._cdata)
                total += size
                self.largest = max(self.largest, size)
        self.peak = max(self.peak, total)

    def takes_too_much(self, action: Action) -> bool:
        """Runs it."""
        if self.on_cpu:
            self.run.act(action)
            tensors = [x for x in self.run.held().values() if isinstance(x, torch.Tensor)]
            return any(x.untyped_storage().nbytes() > ENOUGH // 4 for x in tensors)
        torch.cuda.reset_peak_memory_stats()
        at_first = torch.cuda.memory_allocated()
        self.run.act(action)
        most = torch.cuda.max_memory_allocated()
        if most - at_first > ENOUGH // 4 or "OutOfMemoryError" in str(self.run.trail[-1]):
            return True
        self.with_graphs = max(self.with_graphs, most - self.at_first)
        return False

    def add_control(self, actions: list[Action]) -> None:
        """Another limit, or everything off and on again."""
        dice = self.dice
        limit = self.least_limit(8)
        if not self.tight:
            limit = max(int(self.peak * dice.uniform(0.2, 1)), limit)
        code = f"limits({limit})"
        if dice.random() < 0.06:
            code = "restart()"
        elif dice.random() < 0.3 and not is_known("other_thread"):
            code = f"other_thread({limit})"
        self.act(actions, Action(code))

    def least_limit(self, units: int) -> int:
        """Enough for most operators; in tight programs only for those in slices."""
        dice, largest = self.dice, self.largest
        if self.tight:
            return int(max(largest * dice.choice([0.6, 1.1, 1.5, 2.2, 3]), units * self.unit))
        return max(4 * largest, units * self.unit)

    def add_parking(self, actions: list[Action]) -> None:
        """Gives back a tensor's storage, if nobody else uses it, or lets it come back."""
        names = self.run.names
        held = self.maker.held("k")
        if held:
            name = self.dice.choice(held)
            self.act(
                actions, Action(f"{self.maker.letter}0 = {name}.back({self.dice.randrange(250)})")
            )
            self.act(actions, Action(f"del {name}"))
            return
        least = self.unit if is_known("small_resize") else 1
        alone = [
            name
            for name in self.maker.tensors(lambda t: t.numel() > 0 and not t.requires_grad)
            if names[name]._use_count() == 1
            and torch._C._storage_Use_Count(names[name].untyped_storage()._cdata) <= 2
            and names[name].untyped_storage().nbytes() >= least
            and names[name].untyped_storage().resizable()
            and type(names[name]) is torch.Tensor
        ]
        if alone:
            name = self.dice.choice(alone)
            self.act(actions, Action(f"k0 = Parked({name}); del {name}"))

    def add_threads(self, actions: list[Action]) -> None:
        """Two threads, each with tensors of its own; their lines run one after the other here."""
        old = [name for name in self.run.held() if name[0] in "uw"]  # main may have aliased them
        if old:
            self.act(actions, Action("del " + ", ".join(old)))
        branches: list[list[str]] = []
        for letter in ("u", "w"):
            maker = Maker(self.dice, self.run.names, letter, self.scale)
            lines: list[Action] = []
            outer, self.maker = self.maker, maker
            kept, self.run.trail = self.run.trail, []
            try:
                for _ in range(self.dice.randint(3, 10)):
                    kind = self.dice.choice([k for k in self.kinds() if k[0] in _LOCAL])
                    maker.readable = f"{letter}t" if kind[0] in _SHARED_READS else letter
                    self.add(lines, kind[1], refused=_SHARED)
                events = self.run.trail
            finally:
                self.maker, self.run.trail = outer, kept
            branches.append([line.code for line in lines])
            self.thread_events = [*getattr(self, "thread_events", []), events]
        self.run.note(repr(self.thread_events))
        del self.thread_events
        actions.append(Action(branches=branches))

    def choose_settings(self, planned: bool) -> None:
        dice, settings = self.dice, self.program.settings
        settings.min_block = dice.choice([self.unit] * 4 + [self.unit // 4, 1])
        settings.slices = dice.choice(
            ["auto"] * 6 + ["in_place", "always", "always", "chains", "chains", "off"]
        )
        least = self.least_limit(6)
        # What a step's graph holds is in nobody's name: the peak is that of the names alone.
        part = dice.uniform(0.5, 2.5) if planned else dice.uniform(0.15, 0.9)
        settings.limit = least if self.tight else int(max(self.peak * part, least))
        if planned and not self.on_cpu:
            settings.limit = int(max(self.with_graphs * dice.uniform(0.4, 0.95), 8 * self.unit))
        if self.tight:
            settings.slices = dice.choice(["auto", "auto", "in_place", "always", "chains"])
        if settings.slices == "chains":
            settings.deferred_updates = dice.choice([True, True, "updates", "all", "random"])
        settings.verify = dice.random() < 0.9
        mode = dice.choice(["planned"] * 4 + ["reactive"]) if planned else ""
        mode = mode or dice.choice(["evict", "drop", "drop", "reactive", "reactive", "recompute"])
        if mode == "evict":
            settings.stress = True
        elif mode == "drop":
            settings.stress, settings.recompute = "drop", True
        elif mode in ("planned", "recompute"):
            settings.plan = dice.choice(["now"] * 5 + ["on"])
            settings.recompute = dice.random() < 0.6
            settings.plan_seconds = dice.choice([0.0, 0.005, 0.02])
        settings.host_limit = 1 << 28
        full = dice.random() < 0.15
        if (
            full
            and not settings.stress
            and not (settings.recompute and is_known("full_tier_recompute"))
        ):
            settings.host_limit = int(max(self.peak * dice.uniform(0.3, 1.2), 4 * self.unit))

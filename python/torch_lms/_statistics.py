"""What ``memory_stats`` counts: the table of the summary and of docs/reference.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistic:
    """One figure, or with ``columns`` its values now, at the most, and in sum."""

    key: str
    doc: str
    unit: str = ""  # "bytes", "us", or a count of what ``doc`` says
    columns: tuple[str, ...] = ()
    where: str = ""  # the only device that has it
    title: str = ""  # of its line in ``memory_summary``; empty: none

    def keys(self) -> list[str]:
        """Its keys in ``memory_stats``."""
        return [f"{self.key}.{column}" for column in self.columns] or [self.key]


ALL = ("current", "peak", "allocated", "freed")
LEVEL = ("current", "peak")

# fmt: off
TABLE: tuple[Statistic, ...] = (
    Statistic("device.bytes", "on the device: on CUDA all of PyTorch's memory, on the CPU what is "
              "managed", "bytes", ALL, title="device tier"),
    Statistic("host.bytes", "in pinned host memory, below CUDA", "bytes", ALL, title="host tier"),
    Statistic("file.bytes", "in the file, below the CPU", "bytes", ALL, title="file tier"),
    Statistic("pinned.bytes", "in use by operators that run", "bytes", ALL, title="pinned"),
    Statistic("kept.bytes", "of tensors whose pointer is out: they stay until they die", "bytes",
              ("current",), title="kept"),
    Statistic("blocks", "managed tensor storages", "", ALL, title="blocks (count)"),
    Statistic("absent.bytes", "of tensors that are in the tier below alone", "bytes", ALL),
    Statistic("dropped.bytes", "of tensors that are nowhere and would be computed again", "bytes",
              ALL),
    Statistic("limit", "memory to stay below on the device", "bytes", title="limit"),
    Statistic("host_limit", "memory to stay below in the tier underneath", "bytes",
              title="limit of the tier below"),
    Statistic("bytes_out", "copied off the device", "bytes", title="moved out"),
    Statistic("bytes_in", "copied back", "bytes", title="moved in"),
    Statistic("bytes_remade", "computed again", "bytes", title="computed again"),
    Statistic("evictions", "blocks that have left", title="evictions"),
    Statistic("evictions.clean", "of those, without a copy, since the tier below had one",
              title="  of these clean (nothing copied)"),
    Statistic("page_ins", "blocks that have come back", title="page-ins"),
    Statistic("drops", "blocks let go of, to be computed again", title="blocks dropped"),
    Statistic("remakes", "blocks computed again", title="blocks computed again"),
    Statistic("replays.fused", "results computed again by a kernel that runs several operators"),
    Statistic("replays.fused_failed", "such kernels that could not be made or run", where="cuda"),
    Statistic("relocations", "blocks moved on the device between two planned steps"),
    Statistic("operators", "outermost operators that were seen", title="operators seen"),
    Statistic("op_retries", "operators run again after they ran out of memory",
              title="operators run again after a reclaim"),
    Statistic("op_changes", "operators that went on with another algorithm (other_algorithms)",
              title="operators with another algorithm"),
    Statistic("list_splits", "operators over lists that ran in parts",
              title="list operators split"),
    Statistic("deferred.parts", "updates that were put off (deferred_updates)",
              title="updates put off"),
    Statistic("deferred.waiting", "of those, not yet run"),
    Statistic("deferred.bytes", "weights, gradients and state that these use", "bytes"),
    Statistic("deferred.waited_us", "from call to run, added up over those that have run",
              "us"),
    Statistic("deferred.in_lists", "positions of operators over lists that waited for the "
              "operators that follow (deferred_updates)"),
    Statistic("deferred.in_passes", "parts of operators over lists that ran in one pass over "
              "memory with others"),
    Statistic("deferred.in_rows", "operators whose result waited for whoever uses it, row by row "
              "perhaps (slices)"),
    Statistic("slices.operators", "operators run in slices, as they did not fit as a whole",
              title="operators in slices"),
    Statistic("slices.bytes", "that came and went for these", "bytes",
              title="moved for slices"),
    Statistic("slices.by_rows", "operators that made rows of what they read, which was never "
              "there as a whole", title="operators row by row"),
    Statistic("slices.in_place", "operators that worked on tensors where they lie in the tier "
              "below, as nothing else fitted", title="operators in place"),
    Statistic("slices.in_place_bytes", "of these tensors, and of convolutions' workspaces",
              "bytes", title="used in place"),
    Statistic("plan.shapes", "different steps that are known"),
    Statistic("plan.planned", "of those, planned", title="steps planned"),
    Statistic("plan.kept", "of those, with a plan of an earlier start"),
    Statistic("plan.refined", "of those, planned again with the times of planned steps"),
    Statistic("plan.taken_back", "of those, such as turned out slower, and were left again"),
    Statistic("plan.on_trial", "1 while two plans of the step are compared by the clock"),
    Statistic("plan.rests", "1 while plans are not followed: steps are quicker so, or to see"),
    Statistic("plan.steps", "steps carried out under a plan", title="steps run under a plan"),
    Statistic("plan.divergences", "steps that turned out to be others than planned",
              title="steps that left their plan"),
    Statistic("plan.detours", "times that one left its plan and came back to it"),
    Statistic("plan.refused", "planned drops of blocks that nobody knows how to compute"),
    Statistic("plan.failed", "planned computations that failed, and were done later"),
    Statistic("plan.predicted_us", "how long a step takes under the plan last followed", "us"),
    Statistic("plan.host_us", "what the host takes for it; 0: it is far ahead", "us"),
    Statistic("plan.late_us", "for how long the device waits for the host in it", "us"),
    Statistic("plan.peak", "the most that it has on the device", "bytes"),
    Statistic("plan.arena", "the addresses that it takes", "bytes"),
    Statistic("plan.arena_bound", "the fewest that any placement could take", "bytes"),
    Statistic("alloc.freelist", "allocations from memory that PyTorch had free",
              title="allocations from the free list"),
    Statistic("alloc.driver", "allocations that took new memory",
              title="allocations from the driver"),
    Statistic("alloc.reclaim", "allocations for which blocks had to leave",
              title="allocations after a reclaim"),
    Statistic("alloc.retry", "allocations that found room only at the second try",
              title="allocations that were retried"),
    Statistic("device.reserved", "taken from the driver by PyTorch and LMS", "bytes", LEVEL,
              "cuda"),
    Statistic("arena.bytes", "in use of the addresses that LMS hands out itself", "bytes", LEVEL,
              "cuda"),
    Statistic("arena.reserved", "memory behind those addresses", "bytes", LEVEL, "cuda"),
    Statistic("arena.joins", "allocations put together from free pages", where="cuda"),
    Statistic("arena.misplaced", "allocations and arrivals that lie elsewhere than planned",
              where="cuda"),
    Statistic("host.bytes.reserved", "host memory that is pinned", "bytes", where="cuda"),
    Statistic("host.pending", "slots that wait for a copy before they are free", where="cuda"),
    Statistic("host.segments", "pieces in which host memory was pinned", where="cuda"),
    Statistic("host.mapped", "host memory that has been pinned, each time that it was", "bytes",
              where="cuda"),
    Statistic("host.moved", "moved within host memory, for a piece of it that is large enough",
              "bytes", where="cuda", title="moved within host memory"),
    Statistic("file.bytes.reserved", "length of the file", "bytes", where="cpu"),
)
# fmt: on

"""``torch_lms.explain()``: the statistics of a device in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ._learnt import LearntStep
from ._summary import format_bytes

Stats = Mapping[str, int]
_MUCH = 0.1  # of the limit, or of a step: worth a line
# What the library says of a device's steps.
_ASLEEP = "nothing has had to leave"
_HOPELESS = "no plan could be made for this step"


@dataclass(frozen=True)
class Situation:
    """What is known of a device."""

    device: str
    stats: Stats
    planning: bool = True  # the setting `plan`
    learnt: LearntStep | None = None
    state: str = ""  # whether steps are planned, in the library's words
    detour: str = ""  # where the last detour began, and why, likewise

    @property
    def pressed(self) -> bool:
        """Something has had to leave since `enable()`, from before which the statistics go on;
        with plans off, ever.
        """
        moved = self.stats["evictions"] or self.stats["drops"]
        return bool(moved) and (self.state != _ASLEEP or not self.planning)

    @property
    def overhead(self) -> float | None:
        """By which share a planned step is longer than its operators alone, as predicted."""
        planned = self.stats["plan.predicted_us"] / 1e3
        if not planned or self.learnt is None or self.learnt.in_memory_ms <= 0:
            return None
        return planned / self.learnt.in_memory_ms - 1


def explain(situation: Situation) -> str:
    """Sections of lines; the last is what would help, if anything would."""
    stats = situation.stats
    parts = [
        (f"LMS on {situation.device}, limit {format_bytes(stats['limit'])}", _plan(situation)),
        ("On the device", _memory(situation)),
        ("Moved so far", _moved(situation)),
        ("Limits", _limits(situation)),
        ("What would help", _help(situation)),
    ]
    text = []
    for title, lines in parts:
        found = list(lines)
        if found:
            text.append("\n".join([title, *(f"  {line}" for line in found)]))
    return "\n".join(text)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _plan(now: Situation) -> Iterator[str]:
    stats = now.stats
    if not now.pressed:
        yield "Nothing has had to leave: what the tensors take fits. LMS only watches."
    elif not now.planning:
        yield "Plans are off (plan='off'): whatever is not there is waited for."
    elif stats["plan.steps"]:
        yield f"Planned: {stats['plan.steps']} steps have followed a plan."
        if now.overhead is not None:
            yield (
                f"A step should take {stats['plan.predicted_us'] / 1e3:.1f} ms, "
                f"{_percent(now.overhead)} more than its operators alone."
            )
        if stats["plan.late_us"] > _MUCH * stats["plan.predicted_us"]:
            yield (
                f"For {stats['plan.late_us'] / 1e3:.1f} ms of it the device waits for the CPU, "
                f"which takes {stats['plan.host_us'] / 1e3:.1f} ms."
            )
    elif stats["plan.planned"]:
        yield "A step has been planned; none has followed the plan to its end yet."
    elif stats["plan.shapes"]:
        yield "Not planned yet: a step has repeated, and its plan is being made, or none was found."
    else:
        yield "Not planned yet: no step has repeated. Until then every copy is waited for."
    if now.pressed and now.planning and now.state not in ("", "planned"):
        yield f"Now: {now.state}."
    if stats["deferred.parts"]:
        ran = stats["deferred.parts"] - stats["deferred.waiting"]
        each = f", {stats['deferred.waited_us'] / 1e3 / ran:.0f} ms each" if ran > 0 else ""
        yield (
            f"{stats['deferred.parts']} updates of weights have waited until somebody wanted their "
            f"results{each}. Now {stats['deferred.waiting']} wait, which use "
            f"{format_bytes(stats['deferred.bytes'])}."
        )
    if stats["plan.divergences"]:
        yield f"{stats['plan.divergences']} steps turned out to be others than planned."
    if stats["plan.detours"]:
        last = f": the last time {now.detour}" if now.detour else ""
        times = stats["plan.detours"]
        yield f"{times} times a step left its plan for a while, and came back{last}."


def _memory(now: Situation) -> Iterator[str]:
    stats = now.stats
    yield (
        f"{format_bytes(stats['device.bytes.current'])} now, "
        f"{format_bytes(stats['device.bytes.peak'])} at the most."
    )
    if stats["kept.bytes.current"]:
        yield (
            f"{format_bytes(stats['kept.bytes.current'])} of it stay until they die: a pointer to "
            "them is out (data_ptr(), numpy(), DLPack, a slice of a storage, a collective, ...)."
        )
    if stats["pinned.bytes.current"]:
        yield f"{format_bytes(stats['pinned.bytes.current'])} are in use by operators that run."
    if now.learnt is not None and now.learnt.unmovable:
        yield (
            f"{format_bytes(now.learnt.unmovable)} of a step stay: a pointer to them is out, or no "
            "operator was seen to use them."
        )
    below = stats["host.bytes.current"] + stats["file.bytes.current"]
    where = "host memory" if stats["host.bytes.current"] else "the file"
    if below:
        yield f"{format_bytes(below)} lie in {where}, copies of what is on the device among them."
    if stats["dropped.bytes.current"]:
        yield f"{format_bytes(stats['dropped.bytes.current'])} are nowhere, to be computed again."


def _moved(now: Situation) -> Iterator[str]:
    stats = now.stats
    if not now.pressed:
        return
    clean = f"{stats['evictions.clean']} of {stats['evictions']} evictions needed no copy"
    yield (
        f"{format_bytes(stats['bytes_out'])} out, {format_bytes(stats['bytes_in'])} in, "
        f"{format_bytes(stats['bytes_remade'])} computed again; {clean}."
    )


def _limits(now: Situation) -> Iterator[str]:
    learnt = now.learnt
    if learnt is None:
        return
    yield (
        f"The step that is known takes {format_bytes(learnt.in_memory_peak)} in memory: from that "
        "limit on nothing would leave."
    )
    yield (
        f"Below {format_bytes(learnt.least)} {learnt.least_operator} has no room for all that it "
        "uses at once: it runs in parts, or where its tensors lie, if it can at all. Tensors below "
        "min_block come on top of both."
    )


def _help(now: Situation) -> Iterator[str]:
    stats, learnt = now.stats, now.learnt
    if not now.pressed:
        return
    if not now.planning:
        yield "plan='on'."
    elif not stats["plan.steps"] and now.state == _HOPELESS:
        yield "A larger limit: what one operator of the step needs at once leaves no room to plan."
    elif not stats["plan.steps"]:
        yield (
            "Some more steps. If none is planned after twenty, they differ from each other: other "
            "sizes, other operators, or something that runs only in some of them."
        )
    if stats["plan.divergences"] > _MUCH * stats["plan.steps"] and stats["plan.steps"]:
        yield (
            "Steps that are alike: pad or drop what has another size; log, validate and save less "
            "often."
        )
    if now.overhead is not None and learnt is not None and now.overhead > _MUCH:
        if stats["limit"] < learnt.in_memory_peak:
            yield "A larger limit: it is the surest help. `lms plan` says how much."
        if learnt.largest_list > stats["limit"] / 4:
            yield (
                f"torch_lms.step_in_backward(optimizer): {learnt.list_operator} goes through "
                f"{format_bytes(learnt.largest_list)} at once."
            )
        several = learnt.foreach > 1.5 * learnt.foreach_once
        if several and not stats["deferred.in_lists"] and learnt.foreach_once > stats["limit"] / 4:
            yield (
                "fused=True, an option of the optimizer: as it is, its operators (_foreach_...) go "
                f"{learnt.foreach / learnt.foreach_once:.1f} times through "
                f"{format_bytes(learnt.foreach_once)} in each step, and a fused one goes once. The "
                "last bits of the weights may be others."
            )
    if stats["plan.late_us"] > _MUCH * stats["plan.predicted_us"]:
        yield "Less work for the CPU: larger batches, fewer small operators, torch.compile."
    if stats["kept.bytes.current"] > _MUCH * stats["limit"]:
        yield "Fewer pointers: what is kept takes up the limit for as long as it lives."
    below = stats["host.bytes.current"] + stats["file.bytes.current"]
    if below > 0.75 * stats["host_limit"]:
        yield "A larger host_limit: the tier below is nearly full, and copies are given up early."

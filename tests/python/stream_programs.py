"""Programs on several streams, each right in plain PyTorch, with an eviction at the worst moment.

They fill, copy and sleep, and nothing else, so that they run on a GPU and on the model of one
(``tests/model_cuda``). Each takes what evicts a block, which does nothing in a plain run, and
returns tensors with the one value that all of their elements must have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

BUSY = 50_000_000  # cycles: some 25 ms
Evict = Callable[[torch.Tensor], None]
Result = list[tuple[torch.Tensor, float]]


def large(value: float) -> torch.Tensor:
    """A block: 64 MiB on a GPU, a millisecond and more over the link; it has been used."""
    on_model = "Model" in torch.cuda.get_device_name(0)
    x = torch.full((1 << 18 if on_model else 1 << 24,), float(value), device="cuda")
    x.clone()
    return x


def end(*ones: torch.Tensor, on: torch.cuda.Stream | None = None) -> Result:
    """Takes memory anew on a stream, where what died has lain; all the values that must be."""
    with torch.cuda.stream(on):
        others = [large(9) for _ in range(3)]
        torch.cuda.current_stream().synchronize()
    torch.cuda.current_stream().synchronize()
    return [*((one, 1) for one in ones), *((other, 9) for other in others)]


def back_on_another_stream(evict: Evict) -> Result:
    """Main's block comes back for the side stream, and dies while main reads it."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = large(1)
    evict(x)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = x.clone()
    main.wait_stream(side)
    torch.cuda._sleep(BUSY)
    z = x.clone()
    del x
    return end(y, z, on=side)


def back_on_main(evict: Evict) -> Result:
    """The side stream's block comes back for main, and dies while the side stream reads it."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = large(1)
        evict(x)
    main.wait_stream(side)
    y = x.clone()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        z = x.clone()
    del x
    return end(y, z)


def back_on_a_third(evict: Evict) -> Result:
    """The side stream's block comes back for a third, and dies while the side stream reads it."""
    side, third = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = large(1)
        evict(x)
    third.wait_stream(side)
    with torch.cuda.stream(third):
        y = x.clone()
    side.wait_stream(third)
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        z = x.clone()
    del x
    return end(y, z, on=third)


def looked_at_on_another_stream(evict: Evict) -> Result:
    """The side stream only asks for the address: nothing that main would have to wait for."""
    side = torch.cuda.Stream()
    x = large(1)
    evict(x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        assert x.data_ptr() != 0
    del x
    return end()


def mains_looked_at(evict: Evict) -> Result:
    """The same the other way round: main asks for the address of the side stream's block."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = large(1)
        evict(x)
    torch.cuda._sleep(BUSY)
    assert x.data_ptr() != 0
    del x
    return end(on=side)


def recorded_then_moved(evict: Evict) -> Result:
    """``record_stream`` holds for as long as the tensor lives, wherever its bytes are."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = large(1)
    side.wait_stream(main)
    x.record_stream(side)
    evict(x)
    y = x.clone()
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        z = x.clone()
    del x
    return end(y, z)


def recorded_side_block_moved(evict: Evict) -> Result:
    """The same for a block of a side stream, which main uses."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = large(1)
        x.record_stream(main)
        evict(x)
        y = x.clone()
    main.wait_stream(side)
    torch.cuda._sleep(BUSY)
    z = x.clone()
    del x
    return end(y, z, on=side)


def recorded_while_away(evict: Evict) -> Result:
    """``record_stream`` on what is not there."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = large(1)
    side.wait_stream(main)
    evict(x)
    x.record_stream(side)
    evict(x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY)
        z = x.clone()
    del x
    return end(z)


def waited_for_too_early(evict: Evict) -> Result:
    """Side streams wait for writes of main's that may run later: once main wants them."""
    main = torch.cuda.current_stream()
    written = [(large(0), torch.cuda.Stream()) for _ in range(2)]
    for x, _ in written:
        evict(x)
        x.fill_(1)
    for _, side in written:
        side.wait_stream(main)
    copies = [x.clone() for x, _ in written]
    for x, side in written:
        with torch.cuda.stream(side):
            copies.append(x.clone())
        main.wait_stream(side)
    return end(*copies)


PROGRAMS = [
    back_on_another_stream,
    back_on_main,
    back_on_a_third,
    looked_at_on_another_stream,
    mains_looked_at,
    recorded_then_moved,
    recorded_side_block_moved,
    recorded_while_away,
    waited_for_too_early,
]


class _Tensor:
    """A tensor of a random program, and what the program must know to stay legal."""

    def __init__(self, bytes_: torch.Tensor, value: float, home: int) -> None:
        self.tensor = bytes_
        self.value = value
        self.home = home
        self.recorded: set[int] = set()
        self.users: set[int] = set()  # other streams with uses that home has not waited for
        self.readers: set[int] = set()  # streams with uses since the last write, home among them
        self.writer = home  # the stream of the last write
        self.seen = {home}  # streams that come after it


def random_program(
    seed: int, evict: Evict, steps: int = 120, moves: Sequence[Evict] = ()
) -> Result:
    """Allocates, copies, overwrites, records, evicts and frees at random, on four streams.

    ``moves``: what else moves a tensor's bytes, to be called as often as ``evict``.
    """
    rng = random.Random(seed)
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]
    alive: list[_Tensor] = []
    finished: Result = []

    def wait(waiter: int, other: int) -> None:
        """Makes one stream wait for another, and notes what that says of each tensor."""
        if waiter == other:
            return
        streams[waiter].wait_stream(streams[other])
        for t in alive:
            if other in t.seen:
                t.seen.add(waiter)
            if t.home == waiter:
                t.users.discard(other)

    def touch(t: _Tensor, stream: int, writes: bool) -> None:
        """Orders a use of a tensor as plain PyTorch asks."""
        if stream not in t.seen:
            wait(stream, t.writer)
        if writes:
            for reader in sorted(t.readers | {t.writer}):
                wait(stream, reader)
            t.readers, t.writer, t.seen = set(), stream, {stream}
        else:
            t.readers.add(stream)
        if stream != t.home:
            t.users.add(stream)

    for step in range(steps):
        stream = rng.choice([0, 0, 1, 2, 3])
        action = rng.choice(
            ["new", "copy", "copy", "read", "write", "free", "evict", "evict", "record"]
            + ["move"] * 2 * len(moves)
        )
        with torch.cuda.stream(streams[stream]):
            if rng.random() < 0.3:
                torch.cuda._sleep(BUSY // 50)
            if action == "new" or not alive:
                alive.append(_Tensor(large(step), step, stream))
                continue
            t = rng.choice(alive)
            if action == "evict":
                evict(t.tensor)
            elif action == "move":
                rng.choice(moves)(t.tensor)
            elif action == "record":
                t.tensor.record_stream(streams[stream])
                t.recorded.add(stream)
            elif action == "copy":
                touch(t, stream, writes=False)
                alive.append(_Tensor(t.tensor.clone(), t.value, stream))
            elif action == "write":
                touch(t, stream, writes=True)
                t.tensor.fill_(float(step))
                t.value = step
            elif action == "read":
                other = rng.choice(alive)
                if other is not t:
                    touch(t, stream, writes=False)
                    touch(other, stream, writes=True)
                    other.tensor.copy_(t.tensor)
                    other.value = t.value
            elif len(alive) > 3:
                for user in sorted(t.users - t.recorded):
                    wait(t.home, user)
                alive.remove(t)
                if rng.random() < 0.3:
                    touch(t, t.home, writes=False)
                    with torch.cuda.stream(streams[t.home]):
                        finished.append((t.tensor.clone(), t.value))
                del t
    finished += [(t.tensor, t.value) for t in alive]
    for s in rng.sample(streams, len(streams)):
        s.synchronize()
    return finished

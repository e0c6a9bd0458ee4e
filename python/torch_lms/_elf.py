"""The names that a shared library shows to others, or wants of them (ELF, 64 bits)."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_LOAD, _DYNAMIC = 1, 2  # kinds of segments
_STRTAB, _STRSZ = 5, 10  # entries of the dynamic segment


def names(path: str | Path) -> bytes:
    """The string table of the dynamic section: libraries and symbols, each ended by a zero byte.

    Reads these pages of the file and no others. Empty if the file is no such library.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _names(data)
    except (OSError, ValueError, struct.error):
        return b""


def _names(data: mmap.mmap) -> bytes:
    if data[:6] != b"\x7fELF\x02\x01":
        return b""
    (begin,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []  # address, place in the file, bytes there
    dynamic: dict[int, int] = {}
    for i in range(count):
        at = begin + i * size
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            dynamic = dict(struct.iter_unpack("<QQ", data[offset : offset + length // 16 * 16]))
    table = dynamic.get(_STRTAB)
    if table is None:
        return b""
    for address, offset, length in loads:
        if address <= table < address + length:
            place = table - address + offset
            return data[place : place + dynamic.get(_STRSZ, 0)]
    return b""

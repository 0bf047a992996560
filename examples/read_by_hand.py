"""Print record N of a shard, with the standard library only. Usage: read_by_hand.py SHARD N."""

import re
import struct
import sys
import zlib
from collections.abc import Iterator


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * ((crc ^ byte >> bit) & 1)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:  # the stored form of a CRC: rotated, plus a constant
    crc = crc32c(data)
    return struct.pack("<Q", (crc >> 15 | crc << 17) + 0xA282EAD8)[:4]


def varint(data: bytes, at: int) -> tuple[int, int]:  # the number, and the offset after it
    end = next(last for last in range(at, len(data)) if data[last] < 128) + 1
    return sum((byte & 127) << 7 * n for n, byte in enumerate(data[at:end])), end


def read_record(shard: bytes, number: int) -> bytes:  # follows the indexes
    at = 0
    while at < len(shard):
        begin, count, crc = struct.unpack("<16sxH489xI", shard[at : at + 512])
        assert begin.hex() == "1f8b08040000000000fff401534df001", "there is no index"
        assert crc == crc32c(shard[at + 16 : at + 508]), "the index is damaged"
        entry = at + 27
        for _ in range(count):
            size, entry = varint(shard, entry)
            records, entry = varint(shard, entry)
            if number < records:
                return payload_of(zlib.decompress(shard[at : at + size], wbits=31), number)
            at, number = at + size, number - records
    raise IndexError("the shard has fewer records")


def payload_of(member: bytes, number: int) -> bytes:
    end = 0
    for _ in range(number + 1):
        at, end = end, end + 16 + int.from_bytes(member[end : end + 8], "little")
    length, payload = member[at : at + 8], member[at + 12 : end - 4]
    assert member[at:end] == length + masked(length) + payload + masked(payload), "damaged record"
    return payload


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:  # protobuf field numbers and contents
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        size, at = varint(message, at)
        yield tag >> 3, message[at : (at := at + size)]


def features(example: bytes) -> Iterator[tuple[str, list]]:
    for _, entry in fields(dict(fields(example))[1]):
        parts = dict(fields(entry))
        for kind, body in fields(parts[2]):
            values: list = [value for _, value in fields(body)]
            if kind == 2:
                values = [*struct.unpack(f"<{len(values[0]) // 4}f", values[0])]
            elif kind == 3:
                numbers = re.findall(rb"[\x80-\xff]*[\x00-\x7f]", values[0])
                values = [(n := varint(one, 0)[0]) - (n >> 63 << 64) for one in numbers]
            yield parts[1].decode(), values


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        for name, values in features(read_record(file.read(), int(sys.argv[2]))):
            print(f"{name:<18} {str(values)[:60]}")

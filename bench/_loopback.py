"""This machine's rate over one TCP socket on loopback, and the bytes that a resize must move."""

import multiprocessing
import socket
import statistics
import time

_PIECE_BYTES = 2**20
_NUM_BYTES = 2**30


def loopback_mb_s(repeats: int = 5, num_bytes: int = _NUM_BYTES) -> float:
    """MB/s of one socket between two processes (median)."""
    return round(statistics.median(_rate(num_bytes) for _ in range(repeats)) / 1e6)


def _rate(num_bytes: int) -> float:
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = context.Process(target=_send, args=(server.getsockname()[1], num_bytes))
        sender.start()
        stream, _ = server.accept()
        with stream:
            buffer, missing = bytearray(_PIECE_BYTES), num_bytes
            began_s = time.perf_counter()
            while missing and (count := stream.recv_into(buffer)):
                missing -= count
            seconds = time.perf_counter() - began_s
        sender.join()
    return (num_bytes - missing) / seconds


def _send(port: int, num_bytes: int) -> None:
    piece = bytes(_PIECE_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as stream:
        for start in range(0, num_bytes, _PIECE_BYTES):
            stream.sendall(piece[: num_bytes - start])


def moved_bytes(state_bytes: float, before: int, after: int) -> float:
    """Bytes that must pass between nodes when a state is cut anew, where each rank has a node and keeps it.

    Worker `r` of `W` holds the part `[r / W, (r + 1) / W)`. What a worker needs and had itself is not moved.
    """
    kept = sum(
        max(0.0, min((rank + 1) / before, (rank + 1) / after) - max(rank / before, rank / after))
        for rank in range(min(before, after))
    )
    return state_bytes * (1 - kept)

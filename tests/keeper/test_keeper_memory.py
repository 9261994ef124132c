"""Places, buffers, and which copies count."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from keeper_copies import is_buffer, make_copy

from planner.keeper.copies import CopyKey
from planner.keeper.errors import KeeperError, KeeperFull
from planner.keeper.memory import Buffer, Memory, Table

KEY = CopyKey(generation=1, rank=0, slot=0)
OTHER = CopyKey(generation=1, rank=0, slot=1)
NEWER = CopyKey(generation=2, rank=0, slot=0)
COPY, _ = make_copy({"a": (4,)})


@pytest.fixture
def memory():
    return Memory(bound_bytes=100)


def sealed(memory, key, num_bytes, table=Table.OWN):
    opened = memory.open(table, key, num_bytes)
    memory.seal(opened, COPY)
    return opened


def test_a_place_of_the_same_size_keeps_its_buffer(memory):
    """Its pages are there already. It is not sealed any more."""
    first = sealed(memory, KEY, 40)
    again = memory.open(Table.OWN, KEY, 40)
    assert again.buffer is first.buffer
    assert again.copy is None
    assert memory.copies() == []


def test_a_place_of_another_size_gets_another_buffer(memory):
    """The old one does not count any more."""
    first = sealed(memory, KEY, 60)
    again = memory.open(Table.OWN, KEY, 80)
    assert again.buffer is not first.buffer
    assert memory.used_bytes == 80


def test_the_sum_of_all_buffers_is_bounded(memory):
    """Own copies and replicas. What was there stays sealed, and the message has the numbers."""
    sealed(memory, KEY, 60)
    sealed(memory, KEY, 30, Table.REPLICAS)
    with pytest.raises(KeeperFull, match=r"rank 0, slot 1 needs 11 bytes. The keeper has 10 of 100 bytes left"):
        memory.open(Table.OWN, OTHER, 11)
    with pytest.raises(KeeperFull, match=r"needs 71 bytes. The keeper has 70 of 100"):
        memory.open(Table.OWN, KEY, 71)
    assert len(memory.copies()) == 2
    memory.open(Table.OWN, OTHER, 10)
    assert memory.used_bytes == 100


def test_a_fifth_of_what_the_host_has_left_stays_free():
    """Whatever the bound is. A place that only takes another's room asks for no more."""
    left = [1000]
    memory = Memory(10**6, lambda: left[0])
    memory.open(Table.OWN, KEY, 800)
    left[0] = 200
    with pytest.raises(KeeperFull, match=r"needs 161 bytes\. The host has 200 bytes left, and a fifth"):
        memory.open(Table.OWN, OTHER, 161)
    memory.open(Table.OWN, OTHER, 160)
    memory.open(Table.OWN, KEY, 700)


def test_a_place_opened_again_meanwhile_is_not_sealed(memory):
    """Whoever took its digests, or read it, learns that it has changed."""
    opened = memory.open(Table.OWN, KEY, 40)
    memory.require_unchanged(opened)
    again = memory.open(Table.OWN, KEY, 40)
    for stale in (memory.seal, lambda opened, _: memory.require_unchanged(opened)):
        with pytest.raises(KeeperError, match="opened for writing again"):
            stale(opened, COPY)
    assert memory.copies() == []
    memory.seal(again, COPY)
    assert memory.sealed(KEY).version == again.version


def test_own_copies_come_before_replicas(memory):
    """If both are sealed. A place that is not sealed is passed over."""
    replica = sealed(memory, KEY, 20, Table.REPLICAS)
    own = memory.open(Table.OWN, KEY, 20)
    assert memory.sealed(KEY).version == replica.version
    memory.seal(own, COPY)
    assert memory.sealed(KEY).version == own.version
    with pytest.raises(KeeperError, match=r"slot 1 .no place for it"):
        memory.sealed(OTHER)


def test_earlier_generations_are_forgotten(memory):
    """Own copies and replicas, sealed or not. Who still reads one keeps its memory, and learns of it."""
    old = sealed(memory, KEY, 20)
    memory.open(Table.REPLICAS, OTHER, 20)
    sealed(memory, NEWER, 20)
    memory.forget(2)
    assert memory.used_bytes == 20
    assert old.buffer.view[0] == 0
    with pytest.raises(KeeperError, match="or freed"):
        memory.require_unchanged(old)
    memory.forget(3)
    assert memory.used_bytes == 0


def test_a_second_sender_does_not_write_into_the_first_ones_buffer(memory):
    """The first one may still receive, and would change what the second one has sealed."""
    first = memory.open(Table.REPLICAS, KEY, 20, is_receiving=True)
    second = memory.open(Table.REPLICAS, KEY, 20, is_receiving=True)
    assert second.buffer is not first.buffer
    memory.end_receiving(first)  # says nothing of the second one
    third = memory.open(Table.REPLICAS, KEY, 20, is_receiving=True)
    assert third.buffer is not second.buffer
    memory.end_receiving(third)
    assert memory.open(Table.REPLICAS, KEY, 20).buffer is third.buffer


def test_a_freed_buffer_leaves_no_open_file(memory):
    """Neither do its pages stay."""

    def num_open():
        return sum(is_buffer(path, 77) for path in Path(f"/proc/{os.getpid()}/fd").iterdir())

    before = num_open()
    opened = memory.open(Table.OWN, KEY, 77)
    assert num_open() > before
    del opened
    memory.clear()
    assert num_open() == before


@pytest.mark.process
def test_another_process_can_open_a_buffer_but_not_change_its_size():
    """A shorter one would end the keeper when it reads behind the end."""
    buffer = Buffer(8)
    code = f"""
import os
with open("/proc/{os.getpid()}/fd/{buffer.fd}", "r+b") as file:
    file.write(b"12345678")
    file.flush()
    for size in (4, 9999):
        try:
            os.ftruncate(file.fileno(), size)
        except PermissionError:
            print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused"]
    assert bytes(buffer.view) == b"12345678"


def test_a_size_that_the_system_refuses_is_an_error():
    """It is not an error of the bound."""
    with pytest.raises(KeeperError, match="gives the keeper no memory"):
        Memory(bound_bytes=1 << 62).open(Table.OWN, KEY, 1 << 62)


def test_a_copy_without_bytes_has_a_place(memory):
    """A rank without any rows."""
    assert len(memory.open(Table.OWN, KEY, 0).buffer.view) == 0

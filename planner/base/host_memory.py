"""How much memory a process can still use on this host, under the limits of its container."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, kw_only=True)
class _Controller:
    """Names of a memory controller's files. Sizes in them are bytes, as decimal text.

    Sources: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """

    limit: str
    used: str
    reclaimable: str
    """key in memory.stat: file pages not used lately, with those of child groups"""


_V2 = _Controller(limit="memory.max", used="memory.current", reclaimable="inactive_file")
_V1 = _Controller(limit="memory.limit_in_bytes", used="memory.usage_in_bytes", reclaimable="total_inactive_file")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes of memory that this process can still use: the least of what the host and its control groups have left.

    The host has `MemAvailable` of /proc/meminfo left, which counts page cache that the kernel can drop. A control group
    (Docker, Kubernetes, Slurm, systemd) has its limit less its use left, and its inactive file pages, because the
    kernel drops those before it ends a process. The limits of parent groups count too, as far as they are visible.
    Swap does not count. Other processes share this memory, and each of them sees all of it.

    On a system without /proc/meminfo, such as macOS, it is the size of the physical memory.

    Args:
        root: the folder that has `proc` and `sys`. Tests pass a folder of their own.
    """
    meminfo = _text(root / "proc/meminfo")
    host = None if meminfo is None else mem_available(meminfo)
    if host is None:
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([host, *_left_in_groups(root)])


def mem_available(meminfo: str) -> int | None:
    """The bytes of `MemAvailable` in the text of /proc/meminfo. None if the text has no such line."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def left_in_group(limit: str, used: str, stat: str, reclaimable: str) -> int | None:
    """The bytes that a control group has left, at least 0. None if it has no limit.

    Args:
        limit: text of `memory.max` (version 2, where `max` means no limit) or `memory.limit_in_bytes` (version 1).
        used: text of `memory.current` or `memory.usage_in_bytes`.
        stat: text of `memory.stat`.
        reclaimable: the key of `memory.stat` with the bytes of file pages not used lately, which `used` includes.
    """
    if limit.strip() == "max":
        return None
    found = re.search(rf"^{reclaimable} (\d+)$", stat, re.MULTILINE)
    return max(int(limit) - int(used) + (int(found[1]) if found else 0), 0)


def group_folders(cgroup: str, mountinfo: str) -> list[tuple[PurePosixPath, bool]]:
    """The folders of the control groups that limit a process's memory, each with whether it is of version 2.

    The process's own group comes first, then its parents, up to the mount point. Files of some may be missing: a root
    group has no limit, and a host may mount version 2 without its memory controller.

    Args:
        cgroup: text of /proc/self/cgroup.
        mountinfo: text of /proc/self/mountinfo.
    """
    groups = _memory_groups(cgroup)
    found = []
    for is_v2, group_root, mount in _memory_mounts(mountinfo):
        if is_v2 in groups:
            found += [(folder, is_v2) for folder in _up_to_mount(groups[is_v2], group_root, mount)]
    return found


def _memory_groups(cgroup: str) -> dict[bool, PurePosixPath]:
    """Whether version 2 -> the process's group. A line is `number:controllers:path`, with 0 and none in version 2."""
    groups = {}
    for line in cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            groups[number == "0"] = PurePosixPath(path)
    return groups


def _memory_mounts(mountinfo: str) -> Iterator[tuple[bool, PurePosixPath, PurePosixPath]]:
    """Whether version 2, the group that is mounted, and where, for each mount of control groups with memory.

    A line has: id, parent, device, root, mount point, options, some optional fields, `-`, type, source, super options.
    Source: proc_pid_mountinfo(5).
    """
    for line in mountinfo.splitlines():
        mount, _, system = line.partition(" - ")
        kind, _, options = (*system.split(" "), "", "", "")[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            fields = mount.split(" ")
            yield kind == "cgroup2", PurePosixPath(_unescaped(fields[3])), PurePosixPath(_unescaped(fields[4]))


def _up_to_mount(group: PurePosixPath, group_root: PurePosixPath, mount: PurePosixPath) -> list[PurePosixPath]:
    """A group's folder and its parents' folders, the mount point last. The mount point alone if the group is outside.

    A group outside of the mount, or of the process's namespace (`/..`), has no folder that the process can see.
    """
    if ".." in group.parts or not group.is_relative_to(group_root):
        return [mount]
    inside = group.relative_to(group_root)
    return [mount / inside, *(mount / parent for parent in inside.parents)]


def _unescaped(path: str) -> str:
    """A path of mountinfo, where a blank is a backslash and 040, and likewise tab, line feed and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _left_in_groups(root: Path) -> Iterator[int]:
    cgroup, mountinfo = _text(root / "proc/self/cgroup"), _text(root / "proc/self/mountinfo")
    for folder, is_v2 in group_folders(cgroup or "", mountinfo or ""):
        files, here = _V2 if is_v2 else _V1, root / folder.relative_to("/")
        limit, used, stat = (_text(here / name) for name in (files.limit, files.used, "memory.stat"))
        if limit is None or used is None:
            continue
        left = left_in_group(limit, used, stat or "", files.reclaimable)
        if left is not None:
            yield left


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None

"""Memory left on a host: texts of /proc and of control groups, as systems write them, in a folder of the test's own."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.host_memory import available_bytes, group_folders, left_in_group, mem_available

MEMINFO = "MemTotal:       24684084 kB\nMemFree:        22581968 kB\nMemAvailable:   23345908 kB\nBuffers: 5408 kB\n"
HOST = 23345908 * 1024

V2_CGROUP = "0::/kubepods.slice/pod7.slice/worker\n"
V2_MOUNTS = (
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
)
V1_CGROUP = "9:name=systemd:/\n4:cpuset,memory:/docker/37fc\n1:cpu:/docker/37fc\n0::/\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 /docker/37fc /sys/fs/cgroup/memory ro,relatime master:11 - cgroup cgroup rw,cpuset,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
UNLIMITED_V1 = 9223372036854771712


def host(root, cgroup, mountinfo, meminfo=MEMINFO):
    """A host's files below `root`."""
    write(root / "proc/meminfo", meminfo)
    write(root / "proc/self/cgroup", cgroup)
    write(root / "proc/self/mountinfo", mountinfo)
    return root


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def group_v2(folder, limit, used, inactive=0):
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{used}\n")
    write(folder / "memory.stat", f"anon 5\nfile {inactive}\nactive_file 7\ninactive_file {inactive}\n")


def group_v1(folder, limit, used, inactive=0):
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{used}\n")
    write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {inactive}\n")


def test_this_host_has_memory_left():
    """More than 16 MB, and less than the number that means no limit."""
    assert 2**24 < available_bytes() < 2**60


def test_without_limits_it_is_the_memory_that_the_host_has_left(tmp_path):
    """A root group of version 2 has no files with limits."""
    assert available_bytes(host(tmp_path, "0::/\n", V2_MOUNTS)) == HOST


def test_a_limit_of_version_2_leaves_what_is_not_used_and_inactive_file_pages(tmp_path):
    """Active file pages do not count."""
    root = host(tmp_path, V2_CGROUP, V2_MOUNTS)
    group_v2(root / "sys/fs/cgroup/kubepods.slice/pod7.slice/worker", limit=1000, used=900, inactive=50)
    assert available_bytes(root) == 150


def test_a_limit_of_version_1_leaves_what_is_not_used_and_inactive_file_pages(tmp_path):
    """As Docker mounts it without a namespace: the container's own group is the mount point."""
    root = host(tmp_path, V1_CGROUP, V1_MOUNTS)
    group_v1(root / "sys/fs/cgroup/memory", limit=1000, used=900, inactive=30)
    assert available_bytes(root) == 130


def test_the_tightest_parent_counts(tmp_path):
    """A pod's limit binds its containers, which have none themselves."""
    root = host(tmp_path, V2_CGROUP, V2_MOUNTS)
    top = root / "sys/fs/cgroup"
    group_v2(top / "kubepods.slice/pod7.slice/worker", limit="max", used=10)
    group_v2(top / "kubepods.slice/pod7.slice", limit=5000, used=1000)
    group_v2(top / "kubepods.slice", limit=9000, used=8000)
    assert available_bytes(root) == 1000


def test_a_group_without_limit_does_not_count(tmp_path):
    """Version 1 writes a huge number for it."""
    root = host(tmp_path, V1_CGROUP, V1_MOUNTS)
    group_v1(root / "sys/fs/cgroup/memory", limit=UNLIMITED_V1, used=900)
    assert available_bytes(root) == HOST


def test_a_group_above_its_limit_has_nothing_left(tmp_path):
    """A limit may be lowered below the use."""
    root = host(tmp_path, V2_CGROUP, V2_MOUNTS)
    group_v2(root / "sys/fs/cgroup/kubepods.slice", limit=1000, used=3000)
    assert available_bytes(root) == 0


def test_files_that_cannot_be_read_count_as_no_limit(tmp_path):
    """A sandbox may hide /proc/self/cgroup, or a group's files."""
    write(tmp_path / "proc/meminfo", MEMINFO)
    assert available_bytes(tmp_path) == HOST
    write(tmp_path / "proc/self/cgroup", V2_CGROUP)
    write(tmp_path / "proc/self/mountinfo", V2_MOUNTS)
    write(tmp_path / "sys/fs/cgroup/kubepods.slice/memory.max", "1000\n")  # without its use
    assert available_bytes(tmp_path) == HOST


def test_a_system_without_meminfo_has_its_physical_memory(tmp_path):
    """Such as macOS. Linux's own answer stands in for it here."""
    assert available_bytes(tmp_path) >= available_bytes()


@pytest.mark.parametrize("text", ["", "MemFree: 5 kB\n", "NotMemAvailable: 5 kB\n"])
def test_a_text_without_mem_available_is_not_known(text):
    """Kernels before 3.14 have no such line."""
    assert mem_available(text) is None


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "folders"),
    [
        ("0::/a/b\n", V2_MOUNTS, [("a/b", True), ("a", True), ("", True)]),
        ("0::/../outside\n", V2_MOUNTS, [("", True)]),
        (V1_CGROUP, V1_MOUNTS, [("memory", False), ("unified", True)]),
        ("4:memory:/other\n", V1_MOUNTS, [("memory", False)]),
        ("4:cpu:/other\n", V1_MOUNTS, []),
        ("", "", []),
    ],
    ids=["version 2", "outside of the namespace", "both", "outside of the mount", "no memory controller", "nothing"],
)
def test_groups_are_found_up_to_the_mount_point(cgroup, mountinfo, folders):
    """The process's own group first."""
    expected = [(PurePosixPath("/sys/fs/cgroup") / folder, is_v2) for folder, is_v2 in folders]
    assert group_folders(cgroup, mountinfo) == expected


def test_a_mount_point_with_a_blank_is_read():
    """mountinfo writes it in octal digits."""
    mountinfo = r"29 23 0:26 / /my\040groups rw - cgroup2 cgroup2 rw"
    assert group_folders("0::/\n", mountinfo) == [(PurePosixPath("/my groups"), True)]


@given(limit=st.integers(0, 2**63), used=st.integers(0, 2**63), inactive=st.integers(0, 2**63))
def test_what_is_left_is_never_negative(limit, used, inactive):
    """For any numbers that the three files may have."""
    left = left_in_group(f"{limit}\n", f"{used}\n", f"anon 3\ninactive_file {inactive}\n", "inactive_file")
    assert left == max(limit - used + inactive, 0)

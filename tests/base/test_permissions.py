"""What planner makes is its owner's alone, whatever the umask; in a folder that a team shares, it is the team's."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.permissions import is_within, make_folder, opener_within


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(place):
    return stat.S_IMODE(Path(place).stat().st_mode)


def write(path, root, flags="w"):
    with open(path, flags, opener=opener_within(root)) as stream:
        stream.write("x")


@pytest.mark.usefixtures("umask")
def test_a_new_folder_is_private(tmp_path):
    """The root, what is missing above it, and all within."""
    root = tmp_path / "runs" / "run"
    make_folder(root / "a" / "b", root)
    write(root / "a" / "b" / "file", root)
    write(root / "a" / "b" / "more", root, "a")
    folders = [tmp_path / "runs", root, root / "a", root / "a" / "b"]
    assert [mode(place) for place in folders] == [0o700] * 4
    assert [mode(root / "a" / "b" / name) for name in ("file", "more")] == [0o600] * 2


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("shared", "file"), [(0o2770, 0o660), (0o750, 0o640), (0o755, 0o644), (0o700, 0o600)])
def test_a_new_folder_in_a_shared_one_is_shared(tmp_path, shared, file):
    """As the folder's owner has decided, with the bit that hands the group on; the folder itself is left alone."""
    root = tmp_path / "run"
    root.mkdir()
    root.chmod(shared)
    make_folder(root / "a", root)
    write(root / "a" / "file", root)
    assert (mode(root), mode(root / "a"), mode(root / "a" / "file")) == (shared, shared, file)


@pytest.mark.usefixtures("umask")
def test_an_existing_folder_keeps_its_permissions(tmp_path):
    """A folder, and a file that is written to again."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("before")
    for place, wanted in ((tmp_path / "a", 0o751), (tmp_path / "a" / "file", 0o604)):
        place.chmod(wanted)
    make_folder(tmp_path / "a", tmp_path)
    write(tmp_path / "a" / "file", tmp_path, "a")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "file")) == (0o751, 0o604)


@pytest.mark.parametrize("flags", ["w", "a"])
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_a_link(tmp_path, flags, there):
    """To a file that is there, or to be."""
    target, link = tmp_path / "target", tmp_path / "run" / "link"
    if there:
        target.write_text("mine")
    link.parent.mkdir()
    link.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        write(link, link.parent, flags)
    assert (target.read_text() if there else target.exists()) == ("mine" if there else False)


def test_something_in_the_way_is_an_error(tmp_path):
    """A file, or a link to nowhere."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            make_folder(tmp_path / name / "below", tmp_path)


@given(parts=st.lists(st.sampled_from(["a", "link", "up", "..", "."]), min_size=1, max_size=6))
def test_a_path_within_is_one_that_the_system_finds_within(tmp_path_factory, parts):
    """Whatever links and dots it takes; held against where the system ends up."""
    base = tmp_path_factory.getbasetemp() / "within"
    root = base / "root"
    if not root.exists():
        (root / "a" / "a").mkdir(parents=True)
        (base / "other").mkdir()
        (root / "link").symlink_to("a")
        (root / "a" / "link").symlink_to("a")
        (root / "up").symlink_to(base / "other")
        (root / "a" / "up").symlink_to("../..")
    place = root.joinpath(*parts)
    if place.is_dir():
        descriptor = os.open(place, os.O_RDONLY)
        found = Path(f"/proc/self/fd/{descriptor}").readlink()
        os.close(descriptor)
        assert is_within(str(place), str(root)) == found.is_relative_to(root.resolve())

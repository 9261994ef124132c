"""Blobs in a folder on this machine and at an fsspec URL."""

import errno
import hashlib
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from events import EVENT_S
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import StoreError, Unreachable
from planner.store.storage import Storage


def files_below(folder):
    """Paths of all files below a folder, hidden ones included."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_what_is_written_is_read(storage):
    """Folders are made as needed, bytes stay the same, and a second write replaces the first."""
    for content in [b"", b"\0\xff\r\n", b"long" * 10_000, b"short"]:
        storage.write("a/b/c", content)
        assert storage.read("a/b/c") == content
        assert storage.size_bytes("a/b/c") == len(content)
        assert storage.sha256("a/b/c") == hashlib.sha256(content).hexdigest()


def test_several_folders_are_listed(storage):
    """In the order in which they are named. A missing one is empty."""
    storage.write("a/one", b"x")
    storage.write("b/two", b"x")
    assert storage.names_of("b", "none", "a") == [["two"], [], ["one"]]


def test_a_remote_store_is_asked_for_several_folders_at_once(monkeypatch):
    """Each question waits until all are asked."""
    all_asked = Barrier(3, timeout=EVENT_S)

    def names(_storage, folder):
        all_asked.wait()
        return [folder]

    monkeypatch.setattr(Storage, "names", names)
    assert Storage("memory://listed").names_of("a", "b", "c") == [["a"], ["b"], ["c"]]


def test_existing_is_said_of_blobs_and_folders(storage):
    """Names that were not written do not exist."""
    assert not storage.exists("a")
    storage.write("a/b", b"x")
    assert storage.exists("a")
    assert storage.exists("a/b")
    assert not storage.exists("a/c")
    assert not storage.exists("a/b/c")


@pytest.mark.parametrize("ask", ["exists", "delete"])
@pytest.mark.parametrize(
    ("failure", "told"), [(KeyboardInterrupt(), KeyboardInterrupt), (ConnectionError("refused"), StoreError)]
)
def test_only_a_missing_blob_is_said_to_be_missing(storage, monkeypatch, ask, failure, told):
    """Not one that the store could not be asked for. fsspec's own `exists` would also swallow Ctrl-C."""
    storage.write("a", b"x")

    def info(*_args, **_kwargs):
        raise failure

    monkeypatch.setattr(storage._fs, "info", info)
    with pytest.raises(told):
        getattr(storage, ask)("a")


def test_create_puts_if_absent(storage):
    """The second call says false and changes nothing."""
    assert storage.create("claims/1", b"first")
    assert not storage.create("claims/1", b"second")
    assert storage.read("claims/1") == b"first"
    storage.write("claims/2", b"written")
    assert not storage.create("claims/2", b"created")
    assert storage.read("claims/2") == b"written"


@pytest.fixture
def synced(tmp_path, monkeypatch):
    """Folder -> the names that it had when it was last synced, as a power cut would leave it."""
    found, sync = {}, os.fsync

    def fsync(descriptor):
        sync(descriptor)
        for folder in (tmp_path, *tmp_path.rglob("*")):
            if folder.is_dir() and os.path.samestat(folder.stat(), os.fstat(descriptor)):
                found[folder] = {name.name for name in folder.iterdir()}

    monkeypatch.setattr(os, "fsync", fsync)
    return found


@pytest.mark.parametrize("put", ["create", "write"])
def test_a_new_name_survives_a_power_cut(tmp_path, synced, put):
    """A segment's, and those of its new folders: each folder is synced when the name is there."""
    getattr(Storage(str(tmp_path / "runs/run")), put)("ledger/000001.jsonl", b"x")
    for folder, name in (("", "runs"), ("runs", "run"), ("runs/run", "ledger"), ("runs/run/ledger", "000001.jsonl")):
        assert name in synced[tmp_path / folder]


def test_appending_syncs_nothing(tmp_path, synced):
    """A line per step may cost microseconds. Only the first one makes a folder."""
    storage = Storage(str(tmp_path))
    storage.create("ledger/1", b"x")
    synced.clear()
    storage.append("ledger/1", b"y")
    assert not storage.create("ledger/1", b"z")
    assert tmp_path / "ledger" not in synced


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_run_below_a_folder_that_cannot_be_listed(tmp_path):
    """Its names may be made there, and its folder cannot be opened."""
    (tmp_path / "drop").mkdir(0o300)
    Storage(str(tmp_path / "drop/run")).create("a", b"x")
    assert Storage(str(tmp_path / "drop/run")).read("a") == b"x"


def test_of_16_that_race_exactly_one_creates(tmp_path):
    """Sixteen threads at once, twenty times: one is told so, and the blob is that one's, whole.

    On this machine alone: `memory://` looks first and puts then, so it promises nothing to threads.
    """
    storage = Storage(str(tmp_path))
    for attempt in range(20):
        name, barrier = f"claims/{attempt}", Barrier(16, timeout=EVENT_S)

        def race(number, name=name, barrier=barrier):
            barrier.wait()
            return storage.create(name, bytes([number]) * 1000)

        with ThreadPoolExecutor(16) as threads:
            won = list(threads.map(race, range(16)))
        assert won.count(True) == 1
        assert storage.read(name) == bytes([won.index(True)]) * 1000
    assert files_below(tmp_path / "claims") == sorted(map(str, range(20)))


def test_a_reader_sees_the_old_or_the_new(tmp_path):
    """It never sees a part or a missing blob while another thread replaces it."""
    storage = Storage(str(tmp_path))
    contents = [letter * 300_000 for letter in (b"a", b"b")]
    storage.write("blob", contents[0])

    def replace():
        for turn in range(60):
            storage.write("blob", contents[turn % 2])

    seen = []
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(replace)
        while not writing.done():
            seen.append(storage.read("blob") in contents)
        writing.result()
    assert all(seen)


def test_writing_leaves_only_the_blobs(tmp_path):
    """No temporary file stays, after success, after a lost race, or after a failure."""
    storage = Storage(str(tmp_path))
    storage.write("a/one", b"1")
    storage.write("a/one", b"2")
    storage.create("a/one", b"3")
    storage.create("a/two", b"4")
    storage.write("a/folder/x", b"5")
    with pytest.raises(StoreError):
        storage.write("a/folder", b"not over a folder")
    assert files_below(tmp_path) == ["a/folder/x", "a/one", "a/two"]
    assert storage.names("a") == ["folder", "one", "two"]


def test_appending_adds_to_the_end(storage):
    """Appending also creates the blob. Appended bytes can be read at once."""
    for part in [b"one\n", b"", b"two\n"]:
        storage.append("ledger/1", part)
    storage.sync("ledger/1")
    assert storage.read("ledger/1") == b"one\ntwo\n"


@given(parts=st.lists(st.binary(max_size=20), min_size=1, max_size=8), at=st.integers(0, 200))
def test_reading_a_part_is_a_slice(tmp_path_factory, parts, at):
    """A slice of all appended bytes, empty beyond the end."""
    for storage in [Storage(str(tmp_path_factory.mktemp("slice"))), Storage("memory://slice")]:
        for part in parts:
            storage.append("blob", part)
        whole = b"".join(parts)
        assert storage.read_from("blob", at) == whole[at:]
        assert storage.read_first("blob", at) == whole[:at]
        storage.delete("")


def test_reading_from_what_is_not_there_is_empty(storage):
    """A watcher may come before the first record."""
    assert storage.read_from("ledger/1", 0) == storage.read_first("ledger/1", 9) == b""
    storage.write("ledger/2", b"x")
    assert storage.read_from("ledger/1", 5) == b""


def test_names_are_sorted_and_visible(storage):
    """Blobs and folders directly inside, without names that begin with a dot. A missing folder has none."""
    assert storage.names("a") == []
    for name in ["a/2", "a/10", "a/sub/x", "a/.hidden", "ab/3", "b"]:
        storage.write(name, b"x")
    assert storage.names("a") == ["10", "2", "sub"]
    assert storage.names("a/sub") == ["x"]
    assert storage.names("a/none") == []


def test_what_is_deleted_is_gone(storage):
    """A blob, or a folder with its content, and nothing else. Deleting twice is no error."""
    for name in ["a/1", "a/sub/2", "ab/3"]:
        storage.write(name, b"x")
    storage.delete("a/1")
    assert storage.names("a") == ["sub"]
    storage.delete("a")
    storage.delete("a")
    assert not storage.exists("a")
    assert storage.names("") == ["ab"]
    assert storage.size_bytes("a/1") == -1


def test_two_storages_of_one_url_see_the_same(url):
    """Nothing is cached, because another process may write."""
    here, there = Storage(url), Storage(url)
    assert here.names("a") == []
    there.write("a/x", b"1")
    assert here.names("a") == ["x"]
    assert here.read("a/x") == b"1"
    there.delete("a/x")
    assert not here.exists("a/x")


OPERATIONS = {
    "read": lambda storage, name: storage.read(name),
    "read_from": lambda storage, name: storage.read_from(name, 0),
    "read_first": lambda storage, name: storage.read_first(name, 9),
    "write": lambda storage, name: storage.write(name, b"x"),
    "create": lambda storage, name: storage.create(name, b"x"),
    "append": lambda storage, name: storage.append(name, b"x"),
    "names": lambda storage, name: storage.names(name),
    "exists": lambda storage, name: storage.exists(name),
    "size_bytes": lambda storage, name: storage.size_bytes(name),
    "sha256": lambda storage, name: storage.sha256(name),
    "delete": lambda storage, name: storage.delete(name),
    "path": lambda storage, name: storage.path(name),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["../x", "a/../../x", "a/..", "..", "/etc/passwd", "/"])
def test_a_name_stays_inside(storage, operation, name):
    """Every operation refuses `..` and absolute names."""
    with pytest.raises(StoreError, match="does not stay inside"):
        OPERATIONS[operation](storage, name)


@pytest.mark.parametrize("name", ["a..b", "..a", "a/b../c", "..."])
def test_dots_in_a_name_are_harmless(storage, name):
    """Only a path component `..` leaves the folder."""
    storage.write(name, b"x")
    assert storage.read(name) == b"x"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["file", "folder/secret", "folder/new", "inside/out/secret"])
def test_a_link_does_not_lead_out(tmp_path, operation, name):
    """A run's folder from another user may hold links. Their targets are neither read nor written."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    (run / "inside").mkdir(parents=True)
    (run / "file").symlink_to(outside / "secret")
    (run / "folder").symlink_to("../outside")
    (run / "inside" / "out").symlink_to(outside)
    with pytest.raises(StoreError, match="a symbolic link leads out of it"):
        OPERATIONS[operation](Storage(str(run)), name)
    assert [path.read_text() for path in outside.iterdir()] == ["mine"]


@pytest.mark.parametrize("operation", ["write", "append", "create"])
def test_the_run_itself_may_be_a_link(tmp_path, operation):
    """To a larger disk, for example."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    OPERATIONS[operation](Storage(str(tmp_path / "run")), "a/b")
    assert files_below(tmp_path / "disk") == ["a/b"]


@pytest.mark.parametrize("operation", ["read", "sha256"])
def test_what_is_missing_is_named(storage, operation):
    """With its folder, because there may be several runs."""
    with pytest.raises(StoreError) as caught:
        OPERATIONS[operation](storage, "a/none")
    assert str(caught.value).startswith(f"{storage.url}: cannot use a/none: ")


@pytest.mark.parametrize("operation", ["write", "create", "append", "names", "sha256"])
def test_a_file_where_a_folder_should_be_is_named(tmp_path, operation):
    """If `create` took it for a lost race, a claim would be tried forever."""
    (tmp_path / "a").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot use a/x(/y)?: "):
        OPERATIONS[operation](Storage(str(tmp_path)), "a/x/y" if operation == "names" else "a/x")


@pytest.mark.parametrize("operation", ["write", "append"])
def test_a_blob_above_a_blob_is_named(operation):
    """`memory://` has its own error for it."""
    storage = Storage(f"memory://above-{operation}")
    storage.write("a", b"in the way")
    with pytest.raises(StoreError, match="cannot use a/x: "):
        OPERATIONS[operation](storage, "a/x")


@pytest.mark.parametrize("operation", ["write", "create", "append"])
def test_a_file_where_the_run_should_be_is_named(tmp_path, operation):
    """For example if checkpoint.path names a file."""
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(StoreError, match=f"^{tmp_path}/run: cannot use x: "):
        OPERATIONS[operation](Storage(str(tmp_path / "run")), "x")


@pytest.mark.parametrize("operation", ["read", "read_from", "write", "append", "sha256"])
def test_a_folder_where_a_blob_should_be_is_named(tmp_path, operation):
    """The message has the system's reason."""
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreError, match="cannot use a: "):
        OPERATIONS[operation](Storage(str(tmp_path)), "a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everything")
@pytest.mark.parametrize("operation", ["read", "write", "create", "append", "sha256"])
def test_what_may_not_be_used_is_named(tmp_path, operation):
    """A folder without permissions."""
    (tmp_path / "a").mkdir(mode=0o000)
    with pytest.raises(StoreError, match="Permission denied"):
        OPERATIONS[operation](Storage(str(tmp_path)), "a/x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Could not connect to the endpoint\nmore", "Could not connect to the endpoint"),
        (
            "Parameter validation failed:\n  Invalid bucket name\nmore",
            "Parameter validation failed: Invalid bucket name",
        ),
        ("Parameter validation failed:", "Parameter validation failed:"),
    ],
)
def test_whatever_a_remote_file_system_raises_is_one_sentence(monkeypatch, text, reason):
    """It is another package's code. Clients of HTTP and of clouds have errors of their own."""
    storage = Storage(f"memory://{uuid.uuid4().hex}")

    def unreached(*_arguments, **_settings):
        raise RuntimeError(text)

    monkeypatch.setattr(storage.file_system, "ls", unreached)
    with pytest.raises(Unreachable) as raised:
        storage.names("manifests")
    assert str(raised.value) == f"{storage.url}: cannot use manifests: {reason}"


@pytest.mark.parametrize("url", ["nosuch://bucket/run", "s4://x"])
def test_an_unknown_scheme_is_refused(url):
    """At once, and the message begins with the URL."""
    with pytest.raises(StoreError, match=f"^{url}: no file system is known for {url.partition(':')[0]}://. Write "):
        Storage(url)


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_a_missing_package_is_named(monkeypatch, scheme, package):
    """The message has the command that installs it."""

    def missing(_url):
        raise ImportError(f"Install {package} to access it")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(StoreError) as raised:
        Storage(f"{scheme}://bucket/run")
    told = f"{scheme}:// needs the package {package}. Install it with: pip install {package}"
    assert str(raised.value) == f"{scheme}://bucket/run: {told}"


@pytest.mark.parametrize(
    "url", ["://", "://x", "file://", "memory://", "a\0b", "memory://a\0b", "memory://a::memory://b"]
)
def test_a_url_that_names_no_folder_is_refused(url):
    """At once, and never as a ValueError. The message begins with the URL."""
    with pytest.raises(StoreError) as raised:
        Storage(url)
    assert str(raised.value).startswith(url.replace("\0", "\\x00") + ": ")


@pytest.mark.parametrize(
    "names", [("run::1", "run::2"), ("run", "run::memory"), ("file:run", "run"), ("memory:a", "a")]
)
def test_two_paths_are_two_folders(tmp_path, monkeypatch, names):
    """fsspec reads `::` as a chain and some prefixes as protocols. A path is used unchanged."""
    monkeypatch.chdir(tmp_path)
    for name in names:
        Storage(name).write("blob", name.encode())
    assert [(tmp_path / name / "blob").read_text() for name in names] == list(names)
    assert [Storage(str(tmp_path / name)).read("blob").decode() for name in names] == list(names)


def test_a_path_is_one_for_other_libraries(tmp_path):
    """A plain path for folders and file URLs of this machine, else a URL with its protocol."""
    assert Storage(str(tmp_path)).path("a/b") == f"{tmp_path}/a/b"
    assert Storage(f"file://{tmp_path}/").path("a/b") == f"{tmp_path}/a/b"
    assert Storage("memory://run").path("a/b") == "memory:///run/a/b"
    assert [Storage(url).is_local for url in (str(tmp_path), f"file://{tmp_path}", "memory://run")] == [1, 1, 0]


def test_a_folder_for_others_is_as_open_as_the_run(tmp_path):
    """For Ray's files in a run that a team shares. A second call changes nothing."""
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o2770)
    storage = Storage(str(run))
    storage.make_folder("ray")
    storage.make_folder("ray")
    assert (run / "ray").stat().st_mode & 0o7777 == 0o2770
    Storage("memory://nowhere").make_folder("ray")


@pytest.mark.parametrize(
    "error", [OSError(errno.EINVAL, "The range is not satisfiable"), RuntimeError("not satisfiable")]
)
def test_nothing_is_after_the_end_of_an_object(monkeypatch, error):
    """S3 and Google refuse a range that begins there, each with its own error. Another error of the store is one."""
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    storage.write("blob", b"12345")
    storage.write("empty", b"")
    whole = storage.file_system.cat_file

    def as_object_store(path, start=0, end=None):
        if start >= len(whole(path)) or start == 3:
            raise error
        return whole(path, start=start, end=end)

    monkeypatch.setattr(storage.file_system, "cat_file", as_object_store)
    assert storage.read("blob") == storage.read_part("blob", 0, 9) == b"12345"
    assert storage.read_part("blob", 5, 9) == storage.read_from("blob", 5) == b""
    assert storage.read("empty") == storage.read_first("empty", 9) == b""
    with pytest.raises(StoreError, match="not satisfiable"):
        storage.read_part("blob", 3, 9)


def test_a_follower_asks_no_store_for_what_is_after_the_end(monkeypatch):
    """gcsfs logs the store's refusal with a traceback, and the end of the ledger is read again and again."""
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    storage.write("blob", b"12345")
    asked, whole = [], storage.file_system.cat_file

    def cat_file(path, start=0, end=None):
        asked.append(start)
        return whole(path, start=start, end=end)

    monkeypatch.setattr(storage.file_system, "cat_file", cat_file)
    assert storage.read_from("blob", 5) == storage.read_from("missing", 5) == b""
    assert storage.read_from("blob", 3) == b"45"
    assert asked == [3]


@pytest.mark.parametrize("text", ["https://storage.googleapis.com/b/none/o", "bucket"])
def test_an_error_that_only_has_a_name_says_that_it_was_not_found(monkeypatch, text):
    storage = Storage(f"memory://{uuid.uuid4().hex}")

    def gone(*_arguments, **_settings):
        raise FileNotFoundError(text)

    monkeypatch.setattr(storage.file_system, "pipe_file", gone)
    with pytest.raises(StoreError, match=f": not found: {text}$"):
        storage.write("blob", b"")

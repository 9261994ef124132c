"""A user's own data set: whatever map their Python file returns, with a fingerprint and checksums of its samples."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from planner.data.base import RowCounts
from planner.errors import DataError

# Samples that the fingerprint is taken from, evenly spaced: to read them all could take an hour at each start.
_FINGERPRINTED = 64


@dataclass(frozen=True, kw_only=True)
class OwnDataset:
    """`samples[row]` is row `row`: the same one at every call, since a resumed run and the audit ask again."""

    samples: Any
    num_rows: int
    fingerprint: str
    """the data set's own attribute `fingerprint` where it has one; else over its length and some of its samples"""

    notes: ClassVar[tuple[str, ...]] = ()
    """planner does nothing to the user's samples"""

    @classmethod
    def open(cls, path: str) -> "OwnDataset":
        """Call the file's `dataset()`.

        Raises:
            DataError: the file or its function is not there, fails, or returns no map.
        """
        make = function_of(path, "dataset")
        with _told(f"{path}: dataset() failed"):
            samples = make()
            num_rows = len(samples)
            given = getattr(samples, "fingerprint", "")
        if num_rows < 1:
            raise DataError(f"{path}: dataset() has no samples; return a map with at least one")
        if not isinstance(given, str):
            raise DataError(
                f"{path}: the data set's fingerprint is {type(given).__name__}; make it text, or leave it out"
            )
        dataset = cls(samples=samples, num_rows=num_rows, fingerprint="")
        return cls(samples=samples, num_rows=num_rows, fingerprint=given or dataset._sampled_fingerprint())

    def sample(self, row: int) -> Any:
        """One sample, as the data set returns it.

        Raises:
            DataError: it raised.
        """
        with _told(f"sample {row} of your data set"):
            return self.samples[row]

    def evidence(self, row: int) -> RowCounts:
        """Of the sample, read now. How many tokens a sample has, only the user's own loop knows.

        Raises:
            DataError: the data set raised, or the sample holds what has no bytes of its own.
        """
        return RowCounts(tokens=0, check_sum=check_sum(row, self.sample(row)))

    def _sampled_fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.num_rows} samples".encode())
        for row in range(0, self.num_rows, max(self.num_rows // _FINGERPRINTED, 1)):
            digest.update(self.evidence(row).check_sum.to_bytes(8, "little"))
        return digest.hexdigest()


def check_sum(row: int, sample: Any) -> int:
    """64 bits over a row's number and everything in its sample; a step's checksum is their sum modulo 2^64.

    Raises:
        DataError: the sample holds what has no bytes of its own.
    """
    digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
    with _told(f"sample {row} of your data set"):
        _update(digest, sample, row)
    return int.from_bytes(digest.digest(), "little")


def _update(digest: "hashlib.blake2b", value: Any, row: int) -> None:
    """Types, shapes and bytes, so that no two different samples look alike."""
    if isinstance(value, Mapping):
        for key in value:
            digest.update(f"{key!r}:".encode())
            _update(digest, value[key], row)
    elif isinstance(value, (tuple, list)):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            _update(digest, item, row)
    elif isinstance(value, (str, bytes, int, float, bool, type(None))):
        digest.update(f"{type(value).__name__} {value!r};".encode())
    else:
        array = _array(value, row)
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())


def _array(value: Any, row: int) -> Any:
    """A tensor, an array or a number of some library's."""
    array = np.asarray(value)
    if array.dtype == object:
        raise DataError(
            f"sample {row} of your data set holds {type(value).__name__}; samples are tensors, arrays, numbers and "
            "strings, or tuples, lists and dicts of them"
        )
    return array


def function_of(path: str, name: str) -> Any:
    """A function of a user's Python file.

    Raises:
        DataError: the file cannot be imported, or has no such function.
    """
    found = getattr(_module(path), name, None)
    if not callable(found):
        raise DataError(f"{path}: it has no function {name}; a loop of your own has dataset() and train(run)")
    return found


def _module(path: str) -> ModuleType:
    """By its name and not as a stranger: loader processes find its classes again when they unpickle a data set."""
    file = Path(path).resolve()
    if not file.is_file() or file.suffix != ".py" or not file.stem.isidentifier():
        raise DataError(
            f"data.path: no Python file at {path!r} that can be imported; write NAME.py, without dots or dashes"
        )
    found = sys.modules.get(file.stem) or importlib.util.find_spec(file.stem)
    origin = getattr(found, "origin", None) or getattr(found, "__file__", None)
    if found is not None and Path(origin or "").resolve() != file:
        raise DataError(f"{path}: another module is called {file.stem}, too ({origin or 'built in'}); rename the file")
    if str(file.parent) not in sys.path:
        # Last: a neighbour of the file must not take the place of a library.
        sys.path.append(str(file.parent))
    with _told(f"{path}: it cannot be imported"):
        return importlib.import_module(file.stem)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """The user's code may raise anything, `SystemExit` too, which would end a command as if all were well.

    Raises:
        DataError: it did.
    """
    try:
        yield
    except (DataError, KeyboardInterrupt):
        raise
    except BaseException as error:
        try:
            words = str(error).splitlines()[0] if str(error) else ""
        except Exception:  # noqa: BLE001  # even that is the user's code
            words = ""
        raise DataError(f"{what}: {type(error).__name__}: {words}") from error

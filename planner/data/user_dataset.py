"""A user's own data set: the map that their Python file returns, with a fingerprint and checksums of its samples."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.base.disk import place_text
from planner.base.text import as_submitted
from planner.base.user_errors import code_error
from planner.data.base import Progress, RowContribution, RowLengths, SetRows
from planner.errors import DataError
from planner.job import OwnCode, OwnModel

# Number of evenly spaced samples in the fingerprint. Reading all of them could take an hour at each start.
_FINGERPRINTED = 64


@dataclass(frozen=True, kw_only=True)
class OwnDataset:
    """A data set of the user. `rows[row]` must be equal at every call: resumed runs and audits read rows again."""

    rows: Any
    """the map that `dataset()` returned"""
    num_rows: int
    fingerprint: str
    """the user's attribute `fingerprint`, else a digest of the length and some samples"""

    notes: ClassVar[tuple[str, ...]] = ()
    """no notes: planner does not change the user's samples"""
    sets: ClassVar[tuple[SetRows, ...]] = ()

    @classmethod
    def open(cls, path: str) -> "OwnDataset":
        """Call the file's `dataset()`.

        Raises:
            DataError: the file or its function is missing, fails, or does not return a map.
        """
        make = function_of(path, "dataset")
        with errors_of_user(f"{path}: dataset() failed"):
            samples = make()
            num_rows = len(samples)
            given = getattr(samples, "fingerprint", "")
        if num_rows < 1:
            raise DataError(f"{path}: dataset() has no samples. Return a map with at least one")
        if not isinstance(given, str):
            raise DataError(
                f"{path}: the fingerprint of the data set is {type(given).__name__}. Make it text, or leave it out"
            )
        dataset = cls(rows=samples, num_rows=num_rows, fingerprint="")
        return cls(rows=samples, num_rows=num_rows, fingerprint=given or dataset._sampled_fingerprint())

    def sample(self, row: int) -> Any:
        """The sample as the user's data set returns it.

        Raises:
            DataError: the user's data set raised an error.
        """
        with errors_of_user(f"sample {row} of your data set"):
            return self.rows[row]

    def samples(self, rows: Sequence[int]) -> list[Any]:
        """The samples as the user's data set returns them.

        Raises:
            DataError: the user's data set raised an error.
        """
        return [self.sample(row) for row in rows]

    def evidence(self, row: int) -> RowContribution:
        """The counts of the sample, read now. `tokens` is 0, since only the user's loop knows them.

        Raises:
            DataError: the user's data set raised an error, or the sample has a value without bytes.
        """
        return RowContribution(tokens=0, check_sum=check_sum(row, self.sample(row)))

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """Not known: a user's samples may have no tokens.

        Raises:
            DataError: always.
        """
        del rows
        raise DataError("planner does not know how long a sample of your data set is. Remove batch.max_tokens")

    def _sampled_fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.num_rows} samples".encode())
        for row in range(0, self.num_rows, max(self.num_rows // _FINGERPRINTED, 1)):
            digest.update(self.evidence(row).check_sum.to_bytes(8, "little"))
        return digest.hexdigest()


def open_own(data: OwnCode, _model: OwnModel, _progress: Progress) -> OwnDataset:
    """Open the data set of the user's own training loop.

    Raises:
        DataError: the file or its function is missing, fails, or does not return a map.
    """
    return OwnDataset.open(data.path)


def check_sum(row: int, sample: Any) -> int:
    """64 bits over a row's number and everything in its sample. A step's checksum is their sum modulo 2^64.

    Raises:
        DataError: the sample has a value that is not made of bytes, such as an object.
    """
    digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
    with errors_of_user(f"sample {row} of your data set"):
        _update(digest, sample, row)
    return int.from_bytes(digest.digest(), "little")


def _update(digest: "hashlib.blake2b", value: Any, row: int) -> None:
    """Add types, shapes and bytes to the digest, so that different samples have different digests."""
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
    """A tensor, an array or a number as a numpy array."""
    array = np.asarray(value)
    if array.dtype == object:
        raise DataError(
            f"sample {row} of your data set holds {type(value).__name__}. Return tensors, arrays, numbers and strings, "
            "or tuples, lists and dicts of them"
        )
    return array


def function_of(path: str, name: str) -> Any:
    """The function `name` of a user's Python file.

    Raises:
        DataError: the file cannot be imported, or has no such function.
    """
    found = getattr(_module(path), name, None)
    if not callable(found):
        raise DataError(f"{path}: it has no function {name}. A loop of your own has dataset() and train(run)")
    return found


def _module(path: str) -> ModuleType:
    """Import the file under its own name, so that loader processes find its classes when they unpickle a data set."""
    file = Path(path).resolve()
    if not file.is_file():
        raise DataError.of("data.path", f"no Python file at {path!r}{place_text(path)}. Write NAME.py")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise DataError.of(
            "data.path", f"no Python file at {path!r} that can be imported. Write NAME.py, without dots or dashes"
        )
    found = sys.modules.get(file.stem) or importlib.util.find_spec(file.stem)
    origin = getattr(found, "origin", None) or getattr(found, "__file__", None)
    if found is not None and Path(origin or "").resolve() != file:
        raise DataError(f"{path}: another module is called {file.stem}, too ({origin or 'built in'}). Rename the file")
    if str(file.parent) not in sys.path:
        # At the end, so that other files in the folder do not shadow a library.
        sys.path.append(str(file.parent))
    with errors_of_user(f"{path}: it cannot be imported"):
        return importlib.import_module(file.stem)


@contextmanager
def errors_of_user(what: str) -> Iterator[None]:
    """Translate errors of the user's code. It may raise anything, also a `SystemExit` that looks like success.

    Raises:
        DataError: the user's code raised. It has the traceback.
    """
    try:
        yield
    except (DataError, KeyboardInterrupt):
        raise
    except BaseException as error:
        found = code_error(error)
        failure = DataError(f"{as_submitted(what)}: {found.text}")
        failure.code_traceback = found.traceback
        raise failure from error

"""Columns of parquet and Arrow files that would run code when they are read.

Ray Data registers types with pyarrow in every process that imports Ray Train, and one of them is a pickle: a parquet
file that names it runs whatever it likes in the worker that reads it (tried with Ray 2.60).
"""

from collections.abc import Iterator
from typing import Any

from planner.errors import DataError

_NAME = b"ARROW:extension:name"
# Types in Python that read JSON about themselves and no more: those of the datasets library, and of pandas.
_HARMLESS = ("datasets.", "pandas.")


def require_plain(schema: Any, where: str) -> None:
    """Check a `pyarrow.Schema` before any of its values is read.

    Raises:
        DataError: a column is of a type that somebody's Python makes values of.
    """
    for column in schema:
        for name in _types_in_python(column):
            raise DataError(
                f"data.path: {where}: the column {column.name!r} is of the type {name}, whose values are made by code; "
                "write it as text, numbers or lists of them"
            )


def _types_in_python(field: Any) -> Iterator[str]:
    """Names of such types in a field and all that it is made of."""
    import pyarrow as pa

    # Where nobody has registered a type, as in the driver, its name stands beside a plain one.
    named = ((field.metadata or {}).get(_NAME) or b"").decode(errors="replace")
    kind = field.type
    if named.startswith("ray."):
        yield named
    if isinstance(kind, pa.ExtensionType) and not kind.extension_name.startswith(_HARMLESS):
        yield str(kind.extension_name)
    inner = [kind.field(i) for i in range(kind.num_fields)]
    if isinstance(kind, pa.BaseExtensionType):
        inner.append(pa.field("", kind.storage_type))
    if pa.types.is_dictionary(kind):
        inner.append(pa.field("", kind.value_type))
    for each in inner:
        yield from _types_in_python(each)

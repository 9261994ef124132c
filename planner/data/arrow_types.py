"""Refuses columns of parquet and Arrow files that would run code when they are read, and reads the others.

Ray Data registers types with pyarrow in every process that imports Ray Train. One of them is a pickle: a parquet file
that names it can run any code in the worker that reads it (tried with Ray 2.60).
"""

from collections.abc import Iterator
from typing import Any

from planner.errors import DataError

_NAME = b"ARROW:extension:name"
# Python types that only parse JSON metadata: those of the datasets library and of pandas.
_HARMLESS = ("datasets.", "pandas.")


def require_plain(schema: Any, where: str) -> None:
    """Check a `pyarrow.Schema` before any value is read.

    Raises:
        DataError: a column has a type whose values Python code creates.
    """
    for column in schema:
        for name in _types_in_python(column):
            raise DataError.of(
                "data.path",
                f"{where}: the column {column.name!r} is of the type {name}, which runs code when it is "
                "read. Write it as text, numbers or lists of them",
            )


def _types_in_python(field: Any) -> Iterator[str]:
    """Names of types with Python code in a field and all fields within it."""
    import pyarrow as pa

    # In a process that has not registered a type, such as the driver, its name is in the metadata of a plain one.
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


def plain_values(batch: Any) -> list[dict[str, Any]]:
    """The rows of a `pyarrow` batch or table. Dates and times become integers: Python's types have a smaller range."""
    import pyarrow as pa

    for number, column in enumerate(batch.schema):
        if (kind := _timeless(column.type)) != column.type:
            batch = batch.set_column(number, pa.field(column.name, kind), batch.column(number).cast(kind))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def _timeless(kind: Any) -> Any:
    """The type with integers instead of dates, times and durations, also inside structs and lists."""
    import pyarrow as pa

    if any(
        is_kind(kind) for is_kind in (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration)
    ):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_timeless(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return made(kind.value_field.with_type(_timeless(kind.value_type)))
    return kind

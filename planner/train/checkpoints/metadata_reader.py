"""Reads the `.metadata` of a DCP checkpoint of tensors from untrusted bytes, and checks it.

DCP stores the metadata as a pickle. Python's unpickler executes what a pickle asks for, and nine bytes can make it take
gigabytes. This reader interprets the opcodes that such a file needs, and makes the objects of a dozen known classes. It
refuses every other opcode and every other name. Time and memory grow with the number of bytes, whatever they are.
"""

import gc
import math
import pickletools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PosixPath
from typing import Any, NoReturn

import torch
from torch import Size
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

# A tensor has at most 64 dimensions (`kMaxDims` in ATen's TensorIterator).
_MAX_DIMS = 64
# Inserting a key takes as many comparisons as there are keys with its hash. Anybody can compute offsets that collide.
# Those of honest shards do not: with a million of them, two have the same 64 bits once in 37 million checkpoints.
_MAX_SAME_HASH = 8
# Longer names of tensors and files are cut in messages.
_SHOWN_CHARS = 100


class NotTensorMetadata(Exception):
    """The content is not the metadata of a checkpoint of tensors. The message is the reason alone, without a path."""


def read_metadata(content: bytes, file_sizes: Mapping[str, int]) -> Metadata:
    """Return the metadata in a file's content.

    `file_sizes` has the sizes in bytes of the files that shards may be in.

    Raises:
        NotTensorMetadata: it is something else, or its tensors are not in the files.
    """
    try:
        # The interpreter checks no bounds of its own: beyond the content, the stack or the memo, Python raises
        # IndexError.
        with _collector_paused():
            found = _Interpreter(content).run()
    except IndexError as error:
        raise NotTensorMetadata("it ends early, or takes a value that is not there") from error
    except UnicodeDecodeError as error:
        raise NotTensorMetadata("it has text that is not UTF-8") from error
    if type(found) is not Metadata:
        _refuse(f"it is a {_kind_of(found)}")
    _check(found, file_sizes)
    return found


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python from looking for cycles. It would look at all objects again and again.

    57,600 shards take 1.7 s, and 3.3 s without this (measured).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _refuse(reason: str) -> NoReturn:
    raise NotTensorMetadata(reason)


# The types of all elements of a tuple, a list or a dict.
# Compared by `type`, not `isinstance`: a bool is an int for the latter.
_INTEGERS, _TEXTS, _INDICES, _CHUNKS = {int}, {str}, {MetadataIndex}, {ChunkStorageMetadata}


# -- names: what a pickle may call, and with what


@dataclass(frozen=True, kw_only=True, slots=True)
class _Function:
    """A pickle gets this for a function, or for a class that it calls."""

    make: Callable[[tuple[Any, ...]], object]
    """arguments -> a value"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Class:
    """A pickle gets this for a class whose objects it makes first, and fills by a state later."""

    make: Callable[[Any], object]
    """state -> a complete object"""


class _Unbuilt:
    """An object that has no state yet. No other object can hold it."""

    __slots__ = ("kind", "number")

    def __init__(self, kind: _Class, number: int) -> None:
        self.kind = kind
        self.number = number  # in the memo, if the next opcode puts it there


def _only(arguments: tuple[Any, ...], kind: type) -> Any:
    """The one argument of a call."""
    if len(arguments) != 1 or type(arguments[0]) is not kind:
        _refuse(f"it calls a function of one {kind.__name__} with other arguments")
    return arguments[0]


def _size(arguments: tuple[Any, ...]) -> Size:
    dims = _only(arguments, tuple)
    if len(dims) > _MAX_DIMS or not {*map(type, dims)} <= _INTEGERS:
        _refuse(f"it has a shape that is not of at most {_MAX_DIMS} integers")
    return Size(dims)


_LAYOUTS = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.layout)}


def _layout(arguments: tuple[Any, ...]) -> torch.layout:
    if (layout := _LAYOUTS.get(_only(arguments, str))) is None:
        _refuse("it has an unknown layout")
    return layout


_MEMORY_FORMATS = {
    _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT: torch.contiguous_format,
    _MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST: torch.channels_last,
    _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT: torch.preserve_format,
}
_BY_VALUE = {member.value: found for member, found in _MEMORY_FORMATS.items()}
_BY_NAME = {member.name: found for member, found in _MEMORY_FORMATS.items()}


def _memory_format(arguments: tuple[Any, ...]) -> torch.memory_format:
    if (found := _BY_VALUE.get(_only(arguments, int))) is None:
        _refuse("it has an unknown memory format")
    return found


_MEMORY_FORMAT = _Function(make=_memory_format)


def _member(arguments: tuple[Any, ...]) -> torch.memory_format:
    """A memory format as Python 3.11.0 to 3.11.3 pickle it: `getattr(kind, name)`. Refuses other attributes."""
    kind, name = arguments if len(arguments) == 2 else (None, None)
    found = _BY_NAME.get(name) if kind is _MEMORY_FORMAT and type(name) is str else None
    if found is None:
        _refuse("it names builtins.getattr")
    return found


def _path(arguments: tuple[Any, ...]) -> PosixPath:
    if not {*map(type, arguments)} <= _TEXTS:
        _refuse("it has a path that is not of text")
    return PosixPath(*arguments)


_PATH = _Function(make=_path)

_Fields = Mapping[str, tuple[type, ...]]
_PROPERTIES: _Fields = {
    "dtype": (torch.dtype,),
    "layout": (torch.layout,),
    "requires_grad": (bool,),
    "memory_format": (torch.memory_format,),
    "pin_memory": (bool,),
}
_NONE = type(None)
# The attributes of each class and their types (DCP of torch 2.13). An older torch may leave out those with a default.
_FIELDS: Mapping[type, _Fields] = {
    ChunkStorageMetadata: {"offsets": (Size,), "sizes": (Size,)},
    TensorStorageMetadata: {"properties": (TensorProperties,), "size": (Size,), "chunks": (list,)},
    MetadataIndex: {"fqn": (str,), "offset": (Size,), "index": (int, _NONE)},
    _StorageInfo: {"relative_path": (str,), "offset": (int,), "length": (int,), "transform_descriptors": (_NONE,)},
    StorageMeta: {
        "checkpoint_id": (str, PosixPath, _NONE),
        "save_id": (str, _NONE),
        "load_id": (str, _NONE),
        "modules": (list,),
    },
    Metadata: {
        "state_dict_metadata": (dict,),
        "planner_data": (dict, _NONE),
        "storage_data": (dict,),
        "storage_meta": (StorageMeta, _NONE),
        "version": (str, _NONE),
    },
}


def _made(kind: type, state: Any, fields: _Fields) -> Any:
    """An object with the attributes in `state`, after a check of their names and types."""
    if type(state) is not dict or not state.keys() <= fields.keys():
        _refuse(f"it gives other attributes to a {kind.__name__}")
    for name, value in state.items():
        if type(value) not in fields[name]:
            _refuse(f"it sets {kind.__name__}.{name} to a {_kind_of(value)}")
    try:
        return kind(**state)
    except TypeError as error:
        raise NotTensorMetadata(f"it has half a {kind.__name__}") from error


def _properties(state: Any) -> Any:
    # TensorProperties makes its own state: a tuple in the order of its fields (`__getstate__`).
    if type(state) is not tuple or len(state) != len(_PROPERTIES):
        _refuse("it gives other attributes to a TensorProperties")
    return _made(TensorProperties, dict(zip(_PROPERTIES, state, strict=True)), _PROPERTIES)


def _class(kind: type, fields: _Fields) -> _Class:
    return _Class(make=lambda state: _made(kind, state, fields))


# Everything that a pickle may name: (module, name) -> what it gets.
_NAMES: dict[tuple[str, str], object] = {
    ("builtins", "getattr"): _Function(make=_member),
    ("torch", "Size"): _Function(make=_size),
    ("torch.serialization", "_get_layout"): _Function(make=_layout),
    ("pathlib", "PosixPath"): _PATH,
    ("pathlib._local", "PosixPath"): _PATH,  # its name in Python 3.13
    (_MEM_FORMAT_ENCODING.__module__, _MEM_FORMAT_ENCODING.__name__): _MEMORY_FORMAT,
    (TensorProperties.__module__, TensorProperties.__name__): _Class(make=_properties),
    **{(kind.__module__, kind.__name__): _class(kind, fields) for kind, fields in _FIELDS.items()},
    **{("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
}


def _shown(name: str) -> str:
    """The beginning of a name, in one line."""
    return repr(name[:_SHOWN_CHARS])[1:-1]


def _kind_of(value: object) -> str:
    """The type of a value, for messages."""
    return "half-made object" if type(value) is _Unbuilt else type(value).__name__


# -- the interpreter


class _Interpreter:
    """A stack, the positions of the marks in it, and the memo, as in every interpreter of pickles."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.keys_by_hash: Counter[int] = Counter()
        self.has_path = False

    def run(self) -> object:
        """Interpret the content up to STOP. Returns the value that is then on the stack.

        Raises:
            NotTensorMetadata: it has an opcode, a name, a call or a value that such metadata does not need.
            IndexError: it ends before STOP, or takes a value that is not there.
            UnicodeDecodeError: it has text that is not UTF-8.
        """
        content, stack, memo, others = self.content, self.stack, self.memo, _OTHERS
        pos = 0
        while (opcode := content[pos]) != _STOP:
            pos += 1
            # The most frequent ones are here for speed: they are more than half of all.
            if opcode == _MEMOIZE:
                memo.append(stack[-1])
            elif opcode == _LONG_BINGET:
                stack.append(memo[int.from_bytes(content[pos : pos + 4], "little")])
                pos += 4
            elif opcode == _BININT1:
                stack.append(content[pos])
                pos += 1
            elif opcode == _BINGET:
                stack.append(memo[content[pos]])
                pos += 1
            else:
                pos = others[opcode](self, pos)
        return stack[-1]

    def number(self, pos: int, size: int) -> int:
        """The unsigned integer of `size` bytes at `pos`."""
        return int.from_bytes(self.content[pos : pos + size], "little")

    def since_mark(self) -> list[Any]:
        """Take the values above the topmost mark."""
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def unknown(self, pos: int) -> int:
        """Refuse an opcode."""
        code = chr(self.content[pos - 1])
        name = next((opcode.name for opcode in pickletools.opcodes if opcode.code == code), ascii(code))
        _refuse(f"it has the opcode {name} at byte {pos - 1}")

    # Each method below interprets an opcode. It takes the position after the opcode, and returns the next one's.

    def proto(self, pos: int) -> int:
        """Skip the protocol: an opcode means the same in all of them."""
        return pos + 1

    def frame(self, pos: int) -> int:
        """Skip a frame's size: it only helps to read ahead."""
        if self.number(pos, 8) > len(self.content) - pos - 8:
            _refuse("it has a frame that is longer than the file")
        return pos + 8

    def mark(self, pos: int) -> int:
        """Remember how many values there are."""
        self.marks.append(len(self.stack))
        return pos

    def binput(self, pos: int) -> int:
        """Remember a value by a number of one byte."""
        return self._put(pos, 1)

    def long_binput(self, pos: int) -> int:
        """Remember a value by a number of four bytes."""
        return self._put(pos, 4)

    def _put(self, pos: int, size: int) -> int:
        # Python's picklers number the values one after the other.
        if self.number(pos, size) != len(self.memo):
            _refuse(f"it has memo number {self.number(pos, size)} instead of {len(self.memo)}")
        self.memo.append(self.stack[-1])
        return pos + size

    def none(self, pos: int) -> int:
        """Push None."""
        self.stack.append(None)
        return pos

    def newtrue(self, pos: int) -> int:
        """Push True."""
        self.stack.append(True)
        return pos

    def newfalse(self, pos: int) -> int:
        """Push False."""
        self.stack.append(False)
        return pos

    def binint2(self, pos: int) -> int:
        """Push an integer of two bytes."""
        self.stack.append(self.number(pos, 2))
        return pos + 2

    def binint(self, pos: int) -> int:
        """Push a signed integer of four bytes."""
        return self._push_signed(pos, 4)

    def long1(self, pos: int) -> int:
        """Push a signed integer of as many bytes as the first says, at most eight."""
        if (size := self.content[pos]) > 8:
            _refuse(f"it has an integer of {size} bytes")
        return self._push_signed(pos + 1, size)

    def _push_signed(self, pos: int, size: int) -> int:
        number = int.from_bytes(self.content[pos : pos + size], "little", signed=True)
        if number < 0:  # all integers in metadata are sizes, offsets, positions in lists and codes
            _refuse(f"it has the number {number}")
        self.stack.append(number)
        return pos + size

    def short_binunicode(self, pos: int) -> int:
        """Push a text of at most 255 bytes."""
        return self._push_text(pos + 1, self.content[pos])

    def binunicode(self, pos: int) -> int:
        """Push a text of less than 4 GiB."""
        return self._push_text(pos + 4, self.number(pos, 4))

    def _push_text(self, pos: int, size: int) -> int:
        if size > len(self.content) - pos:
            _refuse("it has a text that is longer than the file")
        self.stack.append(str(self.content[pos : pos + size], "utf-8"))
        return pos + size

    def empty_tuple(self, pos: int) -> int:
        """Push a tuple."""
        self.stack.append(())
        return pos

    def tuple1(self, pos: int) -> int:
        """Push a tuple of one value."""
        self.stack[-1] = (self.stack[-1],)
        return pos

    def tuple2(self, pos: int) -> int:
        """Push a tuple of two values."""
        second = self.stack.pop()
        self.stack[-1] = (self.stack[-1], second)
        return pos

    def tuple3(self, pos: int) -> int:
        """Push a tuple of three values."""
        third, second = self.stack.pop(), self.stack.pop()
        self.stack[-1] = (self.stack[-1], second, third)
        return pos

    def tuple(self, pos: int) -> int:
        """Push a tuple of the values above the mark."""
        self.stack.append((*self.since_mark(),))
        return pos

    def empty_list(self, pos: int) -> int:
        """Push a list."""
        self.stack.append([])
        return pos

    def append(self, pos: int) -> int:
        """Append a value to a list."""
        return self._extend([self.stack.pop()], pos)

    def appends(self, pos: int) -> int:
        """Append the values above the mark to a list."""
        return self._extend(self.since_mark(), pos)

    def _extend(self, items: list[Any], pos: int) -> int:
        if type(self.stack[-1]) is not list or not {*map(type, items)} <= _CHUNKS:
            _refuse("it has a list of something else than chunks of tensors")
        self.stack[-1] += items
        return pos

    def empty_dict(self, pos: int) -> int:
        """Push a dict."""
        self.stack.append({})
        return pos

    def setitem(self, pos: int) -> int:
        """Put a value into a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        return self._update([key], [value], pos)

    def setitems(self, pos: int) -> int:
        """Put the values above the mark into a dict."""
        items = self.since_mark()
        if len(items) % 2:
            _refuse("it has a key without a value")
        return self._update(items[::2], items[1::2], pos)

    def _update(self, keys: list[Any], values: list[Any], pos: int) -> int:
        target = self.stack[-1]
        kinds = {*map(type, keys)}
        if type(target) is not dict or not (kinds <= _TEXTS or kinds <= _INDICES):
            _refuse("it has a dict with something else than names or places of shards for keys")
        if kinds == _INDICES:  # Python's hashes of text cannot be predicted
            self._count_hashes(keys)
        count = len(target) + len(keys)
        target.update(zip(keys, values, strict=True))
        if len(target) != count:
            _refuse("it has a dict with a key twice")
        return pos

    def _count_hashes(self, keys: list[MetadataIndex]) -> None:
        for key in keys:
            found = hash(key)
            self.keys_by_hash[found] += 1
            # Counted over the whole file, not per dict: the pickle may build as many dicts as it likes.
            if self.keys_by_hash[found] > _MAX_SAME_HASH:
                _refuse(f"it has more than {_MAX_SAME_HASH} shards with the same hash")

    def global_(self, pos: int) -> int:
        """Look a name up that stands on two lines of the content."""
        first = self.content.find(b"\n", pos)
        second = self.content.find(b"\n", first + 1)
        if min(first, second) < 0:
            _refuse("it has a name without an end")
        module, name = str(self.content[pos:first], "utf-8"), str(self.content[first + 1 : second], "utf-8")
        self.stack.append(self._found(module, name))
        return second + 1

    def stack_global(self, pos: int) -> int:
        """Look a name up that stands on the stack."""
        name, module = self.stack.pop(), self.stack[-1]
        if type(module) is not str or type(name) is not str:
            _refuse("it names something that is not text")
        self.stack[-1] = self._found(module, name)
        return pos

    @staticmethod
    def _found(module: str, name: str) -> object:
        if (found := _NAMES.get((module, name))) is None:
            _refuse(f"it names {_shown(module)}.{_shown(name)}")
        return found

    def reduce(self, pos: int) -> int:
        """Call a function."""
        arguments, function = self.stack.pop(), self.stack[-1]
        if type(function) is not _Function or type(arguments) is not tuple:
            _refuse(f"it calls a {_kind_of(function)}")
        if function is _PATH:
            if self.has_path:  # a path is a copy of its parts, which are in the file only once
                _refuse("it has more than one path")
            self.has_path = True
            if sum(map(len, (part for part in arguments if type(part) is str))) > len(self.content):
                _refuse("it has a path that is longer than the file")
        self.stack[-1] = function.make(arguments)
        return pos

    def newobj(self, pos: int) -> int:
        """Begin an object of a class."""
        arguments, kind = self.stack.pop(), self.stack[-1]
        if type(kind) is not _Class or type(arguments) is not tuple or len(arguments) > 0:
            _refuse(f"it makes an object of a {_kind_of(kind)}")
        self.stack[-1] = _Unbuilt(kind, len(self.memo))
        return pos

    def build(self, pos: int) -> int:
        """Complete an object."""
        state, unbuilt = self.stack.pop(), self.stack[-1]
        if type(unbuilt) is not _Unbuilt:
            _refuse(f"it changes a {_kind_of(unbuilt)}")
        self.stack[-1] = made = unbuilt.kind.make(state)
        # The pickler puts an object into the memo before its state, and refers to it there afterwards.
        if unbuilt.number < len(self.memo) and self.memo[unbuilt.number] is unbuilt:
            self.memo[unbuilt.number] = made
        return pos


_STOP, _MEMOIZE, _BINGET, _LONG_BINGET, _BININT1 = b".\x94hjK"
_METHODS: Mapping[bytes, Callable[[_Interpreter, int], int]] = {
    b"\x80": _Interpreter.proto,
    b"\x95": _Interpreter.frame,
    b"(": _Interpreter.mark,
    b"q": _Interpreter.binput,
    b"r": _Interpreter.long_binput,
    b"N": _Interpreter.none,
    b"\x88": _Interpreter.newtrue,
    b"\x89": _Interpreter.newfalse,
    b"M": _Interpreter.binint2,
    b"J": _Interpreter.binint,
    b"\x8a": _Interpreter.long1,
    b"\x8c": _Interpreter.short_binunicode,
    b"X": _Interpreter.binunicode,
    b")": _Interpreter.empty_tuple,
    b"\x85": _Interpreter.tuple1,
    b"\x86": _Interpreter.tuple2,
    b"\x87": _Interpreter.tuple3,
    b"t": _Interpreter.tuple,
    b"]": _Interpreter.empty_list,
    b"a": _Interpreter.append,
    b"e": _Interpreter.appends,
    b"}": _Interpreter.empty_dict,
    b"s": _Interpreter.setitem,
    b"u": _Interpreter.setitems,
    b"c": _Interpreter.global_,
    b"\x93": _Interpreter.stack_global,
    b"R": _Interpreter.reduce,
    b"\x81": _Interpreter.newobj,
    b"b": _Interpreter.build,
}
_OTHERS = [_METHODS.get(bytes([code]), _Interpreter.unknown) for code in range(256)]


# -- what the objects say


def _check(metadata: Metadata, file_sizes: Mapping[str, int]) -> None:
    """Refuse metadata whose shards are not in the files, byte for byte, or do not make up its tensors.

    So reading the tensors takes no more memory and time than the files are large.
    """
    if metadata.storage_meta is not None and metadata.storage_meta.modules:
        _refuse("it has modules")
    _check_paths(metadata.planner_data or {})
    lengths = _lengths(metadata.storage_data, file_sizes)
    for name, item in metadata.state_dict_metadata.items():
        if type(name) is not str or type(item) is not TensorStorageMetadata:
            _refuse(f"it has a {_kind_of(item)} for a tensor")
        _check_tensor(f"tensor '{_shown(name)}'", item, lengths.pop(name, {}))
    if lengths:
        _refuse(f"it has shards of '{_shown(next(iter(lengths)))}', but no such tensor")


def _check_paths(planner_data: Mapping[Any, Any]) -> None:
    """Check where in a nested state each tensor was: name -> keys. planner's state is flat."""
    for name, path in planner_data.items():
        if type(name) is not str or type(path) is not tuple or len(path) > _MAX_DIMS:
            _refuse("it has planner data of another kind")
        if not {*map(type, path)} <= {str, int}:
            _refuse("it has planner data of another kind")


def _lengths(storage_data: Mapping[Any, Any], file_sizes: Mapping[str, int]) -> dict[str, dict[Any, int]]:
    """Tensor -> offset of a shard -> its bytes in a file, after a check that no file is read beyond its size.

    Shards take at most a file's size together, because planner stores each of them once.
    """
    found: dict[str, dict[Any, int]] = {}
    left = dict(file_sizes)
    for index, info in storage_data.items():
        if type(index) is not MetadataIndex or type(info) is not _StorageInfo:
            _refuse(f"it has a {_kind_of(info)} for a place in a file")
        name, length = info.relative_path, info.length
        if name not in file_sizes:
            _refuse(f"it names '{_shown(name)}', a file that the manifest does not know")
        left[name] -= length
        if info.offset + length > file_sizes[name] or left[name] < 0:
            _refuse(f"it has shards beyond the {file_sizes[name]} bytes of '{_shown(name)}'")
        found.setdefault(index.fqn, {})[index.offset] = length
    return found


def _check_tensor(title: str, item: TensorStorageMetadata, lengths: dict[Any, int]) -> None:
    """Check that a tensor is made up of its shards. `lengths` has their bytes by offset, and is emptied."""
    size, itemsize = item.size, item.properties.dtype.itemsize
    # `max(dim, 1)`, as in torch's strides: a dimension of 0 must not hide a product that overflows int64.
    if math.prod(max(dim, 1) for dim in size) >= 2**63 or len(item.chunks) != len(lengths):
        _refuse(f"{title} of shape {tuple(size)} has {len(item.chunks)} shards, and {len(lengths)} are in files")
    for chunk in item.chunks:
        offsets, sizes = chunk.offsets, chunk.sizes
        length = lengths.pop(offsets, -1)
        if length < 0 or not len(offsets) == len(sizes) == len(size):
            _refuse(f"{title} has no shard at {tuple(offsets)}")
        if any(map(_is_beyond, offsets, sizes, size)):
            _refuse(f"{title} of shape {tuple(size)} has a shard of shape {tuple(sizes)} at {tuple(offsets)}")
        count = math.prod(sizes)
        # Not equal: `torch.save` wraps the elements in a zip, whose headers count.
        if count * itemsize > length:
            _refuse(f"{title} has a shard of {count} elements of {itemsize} bytes in {length} bytes of a file")
    if not _is_whole(size, item.chunks):
        _refuse(f"{title} of shape {tuple(size)} has shards that do not make it up, each element once")


def _is_whole(size: Size, chunks: list[ChunkStorageMetadata]) -> bool:
    """Whether the chunks, which lie inside, cut the shape along one dimension, without a gap and without overlap.

    A reader would return uninitialised memory for a gap.
    """
    cuts = {dim for chunk in chunks for dim, part in enumerate(chunk.sizes) if part != size[dim]}
    if len(cuts) > 1:
        return False
    dim = cuts.pop() if cuts else None
    if dim is None:
        return len(chunks) == 1 or not math.prod(size)
    end = 0
    for offset, part in sorted((chunk.offsets[dim], chunk.sizes[dim]) for chunk in chunks if chunk.sizes[dim]):
        if offset != end:
            return False
        end += part
    return end == size[dim]


def _is_beyond(offset: int, size: int, whole: int) -> bool:
    return offset + size > whole

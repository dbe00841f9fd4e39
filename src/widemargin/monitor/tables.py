"""Records as a table, and the files of a table: `records.parquet` and `newest.arrow` of a monitor's folder."""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from widemargin.disk import ALWAYS, RATIO, read_file
from widemargin.forms import need
from widemargin.types import InputError

RECORDS, NEWEST, CONFIG = "records.parquet", "newest.arrow", "monitor.json"
PIECE = 8_192  # rows that are copied together
PIECES = 64  # parts of a table in memory before they are joined
FIXED = {"step": "int64", "name": "string", "whole": "bool", "degree": "int64", "exact": "bool", "wall": "double"}
KINDS = {**FIXED, "classes": "string", "hardest": "list"}  # all other columns are double
MOST = 1 << 32  # bytes of a file of records
MOST_ROWS = 10**8
ALWAYS_THERE = ("step", "name", "whole", "n", "psi", "margin", "error", "loss")  # in every record


def give_back_memory(everything: bool = False) -> None:
    """What arrow keeps of a writing for the next one, which is long after it; `everything` also what the C library keeps.

    The end of a parquet file says where each part of it lies, in many small pieces of memory, and twice as many whenever the
    file has doubled. Looking for free pages takes up to a tenth of a second, so it is done after files that take longer.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    if everything:
        with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)


def as_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as columns of fixed types, whatever is missing in them."""
    import pyarrow as pa

    kinds = {"int64": pa.int64, "string": pa.string}
    kinds |= {"bool": pa.bool_, "double": pa.float64, "list": lambda: pa.list_(pa.int64())}
    names = list(dict.fromkeys([*FIXED, *(name for row in rows for name in row)]))
    return pa.table(
        {
            name: pa.array([row.get(name) for row in rows], kinds[KINDS.get(name, "double")](), from_pandas=False)
            for name in names
        }
    )


def joined(tables: Sequence[Any]) -> Any:
    import pyarrow as pa

    joined = pa.concat_tables([table for table in tables if len(table)] or tables[:1], promote_options="permissive")
    return joined.combine_chunks() if joined.num_columns and joined.column(0).num_chunks > PIECES else joined


def parquet_of(tail: Any, before: int, added: int, folder: Path) -> Callable[[BinaryIO], None]:
    """What writes all rows of a folder, a piece at a time so that memory does not grow with them, and then `tail`.

    `before` are in records.parquet, `added` in newest.arrow. They may hold more: those of `tail`, by a writing that was
    interrupted when all was written and nobody had counted it yet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(file: BinaryIO) -> None:
        with contextlib.ExitStack() as stack:
            # Reading ahead is done by other threads, and what those have taken for it pyarrow gives back late or never.
            old = stack.enter_context(pq.ParquetFile(folder / RECORDS, pre_buffer=False)) if before else None
            newest = pa.ipc.open_stream(stack.enter_context((folder / NEWEST).open("rb"))) if added else None
            known = [] if old is None else [old.schema_arrow]
            known += [] if newest is None else [newest.schema]
            schema = pa.unify_schemas([part.remove_metadata() for part in (*known, tail.schema)])
            words = [field.name for field in schema if pa.types.is_string(field.type)]  # numbers hardly repeat:
            writer = stack.enter_context(pq.ParquetWriter(file, schema, use_dictionary=words))  # dictionaries take long
            some: list[Any] = []
            batches = () if old is None else old.iter_batches(PIECE, use_threads=False)
            more = () if newest is None else _whole_ones(newest)
            for batch in itertools.chain(_first(batches, before), _first(more, added)):
                some.append(pa.Table.from_batches([batch]))
                if sum(map(len, some)) >= PIECE:
                    writer.write_table(widened(some, schema), PIECE)
                    some = []
            writer.write_table(widened([*some, tail], schema), PIECE)

    return write


def _first(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """Batches up to so many rows."""
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= len(batch)
        if rows <= 0:
            return


def _whole_ones(stream: Any) -> Iterator[Any]:
    """Batches up to the first that is not whole: a process was killed, or is at work, while it wrote that one."""
    import pyarrow as pa

    with contextlib.suppress(StopIteration, pa.ArrowInvalid, OSError):
        while True:
            yield stream.read_next_batch()


def widened(tables: Sequence[Any], schema: Any) -> Any:
    """Tables one after the other, with all columns of the schema; those that they do not have are empty."""
    import pyarrow as pa

    plain = [table.replace_schema_metadata(None) for table in (schema.remove_metadata().empty_table(), *tables)]
    return pa.concat_tables(plain, promote_options="permissive").select(schema.names)


def count_rows(path: Path) -> int:
    """Rows of a parquet file that has been read before."""
    import pyarrow.parquet as pq

    return pq.read_metadata(path).num_rows if path.is_file() else 0


def arrow_bytes(table: Any, bare: bool = False) -> bytes:
    """As it lies in memory; `bare` without the schema, to be put behind others."""
    head = table.schema.serialize().to_pybytes()
    batches = [batch.serialize().to_pybytes() for batch in table.combine_chunks().to_batches()]
    return b"".join(batches if bare else [head, *batches])  # a stream without the mark that nothing follows


def read_table(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = read_file(path, MOST)
    except FileNotFoundError:
        return None
    try:
        room = ALWAYS + RATIO * len(content)
        if path.name == RECORDS:
            batches, schema = _batches(pq.ParquetFile(io.BytesIO(content)), room)
        else:
            stream = pa.ipc.open_stream(content)
            _check_columns(stream.schema.empty_table())
            _check_unpacked(content)
            batches, schema = _whole_ones(stream), stream.schema
        table = pa.Table.from_batches(_within(batches, room), schema)
        table.validate(full=True)
        _check_columns(table)
    except Exception as error:  # damaged files raise nearly anything
        raise damaged(path, error) from None
    return table


def _batches(file: Any, room: int) -> tuple[Iterator[Any], Any]:
    """The rows of a parquet file, a few after the other; a Misfit where its own account of them says that they take more `room`.

    A value that is repeated takes next to nothing in the file and 8 bytes here, so values are counted and not bytes.
    """
    told = file.metadata
    need(told.num_rows <= MOST_ROWS, "it", "has too many records")
    _check_columns(file.schema_arrow.empty_table())
    groups = [told.row_group(k) for k in range(told.num_row_groups)]
    taken = max(sum(group.total_byte_size for group in groups), 8 * told.num_rows * told.num_columns)
    need(taken <= room, "it", f"unpacks to {taken} bytes, far more than it holds")
    for k in range(len(groups)):
        # An exception by which `column` below would end the process is one that can be caught here.
        next(file.iter_batches(1, row_groups=[k], use_threads=False), None)
    parts = [group.column(k) for group in groups for k in range(group.num_columns)]
    taken = max(taken, 8 * sum(part.num_values for part in parts))
    need(taken <= room, "it", f"unpacks to {taken} bytes, far more than it holds")
    words = [part.total_uncompressed_size for part in parts if part.physical_type == "BYTE_ARRAY"]
    # A text is as long as all of its column at most, and may be that of every row.
    return file.iter_batches(max(1, min(PIECE, ALWAYS // max(words, default=1))), use_threads=False), file.schema_arrow


def _check_unpacked(content: bytes) -> None:
    """A Misfit where a batch of newest.arrow is compressed. Monitors write none so, and arrow would unpack all of it, a thousand
    times its size, before anybody could count."""
    import pyarrow as pa

    with contextlib.suppress(pa.ArrowInvalid, OSError):  # the last one may not be whole
        for message in pa.ipc.MessageReader.open_stream(content):
            if message.type == "record batch":
                need(not _is_packed(message.metadata.to_pybytes()), "it", "is compressed, as no monitor writes it")


def _is_packed(head: bytes) -> bool:
    """Whether the flatbuffer of a record batch, which arrow has verified, has the field `compression`; pyarrow does not tell."""

    def field(table: int, number: int) -> int:
        """Where a field of a table lies; 0 where it has none."""
        slots = table - struct.unpack_from("<i", head, table)[0]
        slot = 4 + 2 * number
        offset = (
            struct.unpack_from("<H", head, slots + slot)[0] if slot < struct.unpack_from("<H", head, slots)[0] else 0
        )
        return table + offset if offset else 0

    header = field(struct.unpack_from("<I", head, 0)[0], 2)  # Message: version, type of the header, header, ...
    batch = header + struct.unpack_from("<I", head, header)[0]
    return field(batch, 3) > 0  # RecordBatch: length, nodes, buffers, compression, ...


def _within(batches: Iterator[Any], room: int) -> Iterator[Any]:
    taken = 0
    for batch in batches:
        taken += batch.nbytes
        need(taken <= room, "it", f"unpacks to more than {room} bytes, far more than it holds")
        yield batch


def _check_columns(table: Any) -> None:
    """A Misfit where a column is missing or of another type."""
    import pyarrow as pa

    names = table.column_names
    need(len(set(names)) == len(names), "it", "has two columns of one name")
    for name in FIXED if not len(table) else (*FIXED, *ALWAYS_THERE):
        need(name in names, f"the column {name}", "is missing")
    fits = {
        "int64": pa.types.is_int64, "string": pa.types.is_string, "bool": pa.types.is_boolean, "double": pa.types.is_float64,
        "list": lambda kind: pa.types.is_list(kind) and pa.types.is_int64(kind.value_type),
    }  # fmt: skip
    for field in table.schema:
        kind = KINDS.get(field.name, "double")
        need(fits[kind](field.type), f"the column {field.name[:60]!r}", f"holds {field.type}, not {kind}")
    for name in ALWAYS_THERE if len(table) else ():
        need(not table[name].null_count, f"the column {name}", "has holes")
    if len(table):
        n = table["n"].to_numpy()
        need(bool((np.isfinite(n) & (n >= 0) & (n < 2**62)).all()), "the column n", "does not count examples")
        for name in names:
            share = name.removeprefix("margin_q") if name.startswith("margin_q") else "0"
            need(
                share.replace(".", "", 1).isdecimal() and len(share) < 20, f"the column {name[:60]!r}", "is no quantile"
            )


def damaged(path: Path, why: Any) -> InputError:
    """One sentence: the file, what is wrong, and what can still be done."""
    if isinstance(why, InputError):
        return why
    can = {
        CONFIG: "the records beside it can be read with any reader of parquet files",
        NEWEST: f"remove it to see the records in {RECORDS}, which are older",
        RECORDS: f"what is in {NEWEST}, if it is there, can be read with pyarrow",
    }
    said = " ".join(str(why).split())[:200] or type(why).__name__
    return InputError(f"{path} cannot be read ({said}): it is damaged; {can[path.name]}")

"""Hostile files in the place of a ledger: functions that make one at a path, by what is wrong with it."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from ledger_helpers import DIM, fill, make_row, raw

from leapwise.storage import FORMAT_VERSION
from leapwise.storage import rows as row_codec

MARKER = "executed"


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def bomb(path):
    return pickle.dumps(Bomb(os.path.join(os.path.dirname(path), MARKER)))


@cache
def whole():
    with tempfile.TemporaryDirectory() as folder:
        fill(os.path.join(folder, "run.db"), n=5)
        return Path(folder, "run.db").read_bytes()


def copy_of_whole(path):
    Path(path).write_bytes(whole())


def sql(*statements):
    """Fill a ledger, then do something to it."""

    def act(path):
        copy_of_whole(path)
        with raw(path) as connection:
            for statement in statements:
                what, values = statement if isinstance(statement, tuple) else (statement, ())
                connection.execute(what, values(path) if callable(values) else values)

    return act


def put_row(**changes):
    """Replace a row by one with false values and a right checksum."""

    def act(path):
        copy_of_whole(path)
        names = row_codec.ROW_COLUMNS.split(", ")
        record = dict(zip(names, row_codec.encode_row(make_row(0, 1), DIM), strict=True))
        record.update({k: v(path) if callable(v) else v for k, v in changes.items()})
        encoded = {k: v.encode() if isinstance(v, str) else v for k, v in record.items()}
        record["digest"] = row_codec._row_digest(
            tuple(encoded[k] for k in ("place", "chain", "step", "log_density", "seconds", "attempts")),
            tuple(encoded[k] for k in ("phase", "status", "message", "position", "gradient", "outputs")),
        )
        with raw(path) as connection:
            sets = ", ".join(f"{name} = ?" for name in names)
            connection.execute(f"UPDATE evaluation SET {sets} WHERE place = 1", [record[k] for k in names])

    return act


def put_header(**changes):
    """Replace the header by one with false values and a right checksum."""

    def act(path):
        copy_of_whole(path)
        with raw(path) as connection:
            ((body,),) = connection.execute("SELECT body FROM header").fetchall()
            body = json.dumps({**json.loads(body), **changes})
            digest = row_codec.digest_of(body.encode(), b"header")
            connection.execute("UPDATE header SET body = ?, digest = ?", (body, digest))

    return act


def header_text(text):
    def act(path):
        copy_of_whole(path)
        with raw(path) as connection:
            digest = row_codec.digest_of(text.encode(), b"header")
            connection.execute("UPDATE header SET body = ?, digest = ?", (text, digest))

    return act


def put_checkpoint(entries, bodies, meta=None, text=None):
    """Replace a checkpoint by one with false contents and right checksums."""

    def act(path):
        copy_of_whole(path)
        contents = text or json.dumps({"mark": "0", "arrays": entries, "meta": {} if meta is None else meta})
        parts = [contents.encode(), *(body(path) if callable(body) else body for body in bodies)]
        with raw(path) as connection:
            connection.execute("DELETE FROM checkpoint WHERE name = 'kernel'")
            for part, body in enumerate(parts):
                digest = row_codec._digest("kernel", part, "0", body)
                connection.execute(
                    "INSERT INTO checkpoint (name, part, body, digest) VALUES ('kernel', ?, ?, ?)",
                    (part, body, digest),
                )

    return act


def write_bytes(data):
    def act(path):
        with open(path, "wb") as file:
            file.write(data(path) if callable(data) else data)

    return act


def other_application(path):
    with raw(path) as connection:
        connection.execute("CREATE TABLE bookmarks (name TEXT)")


def empty_database(path):
    with raw(path) as connection:
        connection.execute("CREATE TABLE a (b)")
        connection.execute("DROP TABLE a")


def view_for_table(path):
    copy_of_whole(path)
    with raw(path) as connection:
        connection.execute("ALTER TABLE evaluation RENAME TO hidden")
        connection.execute("CREATE VIEW evaluation AS SELECT * FROM hidden")


def schema_text(old, new):
    def act(path):
        copy_of_whole(path)
        with raw(path) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?)", (old, new))

    return act


def overflow_loop(path):
    """A long blob whose chain of pages bites its own tail, in a small file."""
    copy_of_whole(path)
    with raw(path) as connection:
        connection.execute(
            "INSERT INTO checkpoint (name, part, body, digest) VALUES ('long', 0, zeroblob(9000), x'00')"
        )
    data = bytearray(Path(path).read_bytes())
    for page in range(1, len(data) // 2048):
        start = 2048 * page
        if data[start + 4 : start + 2048] == bytes(2044) and data[start : start + 4] != bytes(4):
            data[start : start + 4] = struct.pack(">I", page + 1)
    write_bytes(bytes(data))(path)


def symbolic_loop(path):
    os.symlink(path, path)


def fifo(path):
    os.mkfifo(path)


def nested(depth):
    return "[" * depth + "]" * depth


def shell(path):
    """A file whose text a shell or an interpreter would run."""
    return f"#!{sys.executable}\nopen({os.path.join(os.path.dirname(path), MARKER)!r}, 'w')\n".encode()


f8 = np.arange(2.0).tobytes()

# What is wrong -> how to make it. All are refused when opened, or when rows or checkpoints are read.
HOSTILE = {
    "an empty file": write_bytes(b""),
    "a text file": write_bytes(b"draws,lp\n1,2\n" * 100),
    "a script": write_bytes(shell),
    "a pickle": write_bytes(bomb),
    "random bytes": write_bytes(np.random.default_rng(1).bytes(10_000)),
    "SQLite's first bytes only": write_bytes(b"SQLite format 3\0"),
    "SQLite's first bytes and nonsense": write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40),
    "a folder": os.mkdir,
    "a symbolic loop": symbolic_loop,
    "a pipe": fifo,
    "another application": other_application,
    "an empty database": empty_database,
    "another application id": sql("PRAGMA application_id = 1"),
    "a format of the past": sql("PRAGMA user_version = 1"),
    "a format of the future": sql(f"PRAGMA user_version = {FORMAT_VERSION + 1}"),
    "a missing table": sql("DROP TABLE evaluation"),
    "a missing header table": sql("DROP TABLE header"),
    "a table more": sql("CREATE TABLE more (a)"),
    "a trigger": sql("CREATE TRIGGER t AFTER INSERT ON evaluation BEGIN DELETE FROM evaluation; END"),
    "a view more": sql("CREATE VIEW v AS SELECT load_extension('x')"),
    "a view instead of a table": view_for_table,
    "an index on an expression": sql("CREATE INDEX i ON evaluation (abs(chain))"),
    "a generated column": sql("ALTER TABLE evaluation ADD COLUMN g AS (hex(zeroblob(10)))"),
    "a check in the schema": schema_text(
        "attempts INTEGER NOT NULL", "attempts INTEGER CHECK (attempts > 0)"
    ),
    "a schema that is not SQL": schema_text("CREATE TABLE failure", "CREATE TABLE failure; ATTACH"),
    "an SQL injection for a table's name": sql('CREATE TABLE "x; DROP TABLE evaluation; --" (a)'),
    "no header": sql("DELETE FROM header"),
    "two headers": sql("INSERT INTO header SELECT 2, body, digest FROM header"),
    "a header without its checksum": sql("UPDATE header SET digest = x'00'"),
    "a header that is a pickle": sql(("UPDATE header SET body = ?", lambda path: (bomb(path),))),
    "a header that is a number": sql("UPDATE header SET body = 1"),
    "a header nested without end": header_text(nested(200_000)),
    "a header that is a list": header_text("[]"),
    "a header with an endless number": header_text('{"dim": ' + "9" * 10_000 + "}"),
    "a dimension without end": put_header(dim=10**15),
    "a negative dimension": put_header(dim=-1),
    "a dimension that is true": put_header(dim=True),
    "a dimension that is text": put_header(dim="3"),
    "names that are too few": put_header(names=["a"]),
    "names that are numbers": put_header(names=[1, 2, 3]),
    "an entry more in the header": put_header(__class__="os.system"),
    "another format in the header": put_header(format_version=7),
    "a pickle for a position": put_row(position=bomb),
    "a position without end": put_row(position=bytes(8 * 10**6)),
    "a position of seven bytes": put_row(position=bytes(7)),
    "a position that is NaN": put_row(position=np.full(DIM, np.nan).tobytes()),
    "a gradient of another size": put_row(gradient=bytes(8)),
    "outputs of nine bytes": put_row(outputs=bytes(9)),
    "an infinite density": put_row(log_density=np.inf),
    "a rejection with a density": put_row(status="rejected"),
    "an unknown status": put_row(status="'; DROP TABLE evaluation; --"),
    "no attempts": put_row(attempts=0),
    "negative seconds": put_row(seconds=-1.0),
    "a message that is not text": put_row(message=b"\xff\xfe"),
    "text for a density": sql("UPDATE evaluation SET log_density = 'x' WHERE place = 1"),
    "text for a position": sql("UPDATE evaluation SET position = 'x' WHERE place = 1"),
    "a blob for a phase": sql("UPDATE evaluation SET phase = x'80' WHERE place = 1"),
    "a number for a digest": sql("UPDATE evaluation SET digest = 1 WHERE place = 1"),
    "a negative place": sql("UPDATE evaluation SET place = -5 WHERE place = 1"),
    "a place beyond all": sql(("UPDATE evaluation SET place = ? WHERE place = 1", (2**63 - 1,))),
    "a checkpoint of objects": put_checkpoint([["x", "|O", [1]]], [bomb]),
    "a checkpoint of records": put_checkpoint([["x", "V8", [1]]], [bytes(8)]),
    "a checkpoint with a dtype to evaluate": put_checkpoint([["x", "__import__('os')", [1]]], [bytes(8)]),
    "a huge shape": put_checkpoint([["x", "<f8", [10**12, 10**12]]], [f8]),
    "a shape that overflows to the right size": put_checkpoint([["x", "<f8", [2**62 + 2, 4]]], [f8]),
    "a huge shape of nothing": put_checkpoint([["x", "<f8", [0, 2**62, 2**62]]], [b""]),
    "a negative shape": put_checkpoint([["x", "<f8", [-1, -2]]], [f8]),
    "a shape of floats": put_checkpoint([["x", "<f8", [2.0]]], [f8]),
    "a shape that is true": put_checkpoint([["x", "|b1", [True]]], [b"\1"]),
    "a shape of a thousand sides": put_checkpoint([["x", "<f8", [1] * 1000]], [bytes(8)]),
    "bools that are none": put_checkpoint([["x", "|b1", [2]]], [b"\1\2"]),
    "an array too few": put_checkpoint([["x", "<f8", [2]]], []),
    "an array too many": put_checkpoint([], [f8]),
    "two arrays of one name": put_checkpoint([["x", "<f8", [2]]] * 2, [f8, f8]),
    "an entry that is no list": put_checkpoint(["x"], [f8]),
    "meta that is a list": put_checkpoint([], [], meta=[1]),
    "meta nested without end": put_checkpoint(
        [], [], text='{"mark": "0", "arrays": [], "meta": ' + nested(10**5)
    ),
    "a checkpoint of text": sql("UPDATE checkpoint SET body = 'x' WHERE name = 'kernel' AND part = 1"),
    "a checkpoint of numbers": sql("UPDATE checkpoint SET body = 5 WHERE name = 'kernel'"),
    "a checkpoint with a part missing": sql("DELETE FROM checkpoint WHERE name = 'kernel' AND part = 1"),
    "a checkpoint without its contents": sql("DELETE FROM checkpoint WHERE name = 'kernel' AND part = 0"),
    "a checkpoint under another's name": sql(
        "UPDATE checkpoint SET name = 'x' WHERE name = 'kernel'",
        "UPDATE checkpoint SET name = 'kernel' WHERE name = 'draws/0'",
    ),
    "a name that is not text": sql("UPDATE checkpoint SET name = x'ff' WHERE name = 'kernel'"),
    "a chain of pages without end": overflow_loop,
}

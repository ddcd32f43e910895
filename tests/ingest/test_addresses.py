"""Files that are read from their addresses, against a server of this process, which may also fail."""

from __future__ import annotations

import gzip
import importlib.util
import io
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import distsms
from distsms.__main__ import main
from distsms.base import addresses, text_files
from distsms.base.errors import InputError
from distsms.base.wording import without_credentials
from distsms.ingest.formats import csv_files
from distsms.ingest.formats.arrow import values_of
from distsms.ingest.formats.registry import format_of
from distsms.shards.dataset import read_manifest
from tests.support.conversion import convert
from tests.support.files import ALONE, content, on_root

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

ROWS = "x,w,y\n" + "".join(f'{k % 17}.5,"word {k % 3}{chr(10) * (k % 40 == 7)}",{k % 2}\n' for k in range(3000))
SVMLIGHT = "".join(f"{k % 2} 1:{k % 17}.5 {2 + k % 3}:1\n" for k in range(3000))


class Server(ThreadingHTTPServer):
    """Serves `files`, by their names. `fault` is what it does wrong, and `asked` has the ranges it was asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.fault, self.asked = {}, None, []

    def at(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        body, fault = self.server.files.get(self.path.split("?")[0][1:]), self.server.fault
        if fault == "silent":
            time.sleep(5.0)
            self.close_connection = True
            return
        if body is None or fault in (302, 403, 500):
            self.send_response(fault or 404)
            if fault == 302:
                self.send_header("Location", self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), min(int(asked[2]) + 1, len(body))) if asked else (0, len(body))
        self.server.asked += [(start, stop)] if with_body else []
        if fault == "no parts":
            start, stop, asked = 0, len(body), None
        self.send_response(206 if asked else 200)
        if fault != "no length":
            self.send_header("Content-Length", str(stop - start))
        else:
            self.send_header("Connection", "close")
        self.send_header("ETag", str(hash(body)))
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body)}") if asked else None
        self.end_headers()
        if with_body:
            part = body[start:stop]
            self.wfile.write(part[: len(part) // 2] if fault == "breaks off" and start > 0 else part)
        self.close_connection = fault in ("breaks off", "no length")

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as made:
        made.files = {"a.csv": ROWS.encode(), "a.csv.gz": gzip.compress(ROWS.encode(), 0), "a.svm": SVMLIGHT.encode()}
        table, stream = pa.table({"x": np.arange(3000) % 17 + 0.5, "y": np.arange(3000) % 2}), io.BytesIO()
        pq.write_table(table, stream, row_group_size=500)
        made.files["a.parquet"] = stream.getvalue()
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.svm", "a.parquet"])
@pytest.mark.parametrize("fault", [None, "no parts"])
def test_rows_are_those_of_the_file_itself(comm, shared_dir, server, monkeypatch, name, fault):
    """Also from a server that sends whole files only."""
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (10_000,))
    monkeypatch.setattr(addresses, "BUFFER", 2000)
    monkeypatch.setattr(csv_files, "SAMPLE_BYTES", 2000)
    server.fault = fault
    label = None if name == "a.svm" else "y"
    on_root(comm, lambda: (shared_dir / name).write_bytes(server.files[name]))
    address = comm.bcast(server.at(name))
    found = convert([address], shared_dir / "d", comm, label=label, n_shards=3)
    expected = convert([shared_dir / name], shared_dir / "e", comm, label=label, n_shards=3)
    assert found.table == expected.table and read_manifest(shared_dir / "d").source == expected.source
    for array, other in zip(content(shared_dir / "d"), content(shared_dir / "e"), strict=True):
        np.testing.assert_array_equal(array, other)
    sizes = [stop - start for start, stop in server.asked]
    if comm.is_root and name == "a.csv" and fault is None:  # which is read in parts
        assert max(sizes) < 20_000 and max(stop for _, stop in server.asked) == len(server.files[name])
    comm.barrier()


@pytest.mark.serial
def test_python_and_the_command_take_addresses(tmp_path, server, capsys):
    (tmp_path / "a.csv").write_bytes(server.files["a.csv"])
    how = {"label": "y", "lam": 0.1, "solver": "lbfgs"}
    expected = distsms.train(tmp_path / "a.csv", **how)
    model = distsms.train(server.at("a.csv?key=1"), **how)
    assert distsms.evaluate(model, server.at("a.csv.gz"))["n"] == 3000
    np.testing.assert_array_equal(model.w, expected.w)
    scores = distsms.predict(model, server.at("a.csv"))
    np.testing.assert_array_equal(scores, distsms.predict(model, tmp_path / "a.csv"))
    assert distsms.predict(model, f"file://{tmp_path}/a.csv").tolist() == scores.tolist()
    words = ["shard", server.at("a.csv"), str(tmp_path / "d"), "--label", "y"]
    assert main(words) == 0 and read_manifest(tmp_path / "d").n == 3000
    shards = tmp_path / "shards"
    shards.mkdir()
    run = {"shards": shards, "checkpoint": tmp_path / "check", "resume": True, **how}
    distsms.train(server.at("a.csv"), **run)
    server.files["a.csv"] = server.files["a.csv"].replace(b"1.5", b"2.5")  # of the same size
    with pytest.raises(InputError, match="the files have changed since these shards were made"):
        distsms.train(server.at("a.csv"), **run)


@pytest.mark.serial
def test_user_password_and_query_are_neither_shown_nor_kept(tmp_path, server, capsys, monkeypatch):
    address = server.at("a.csv?token=SECRET").replace("//", "//SECRETIVE:SECRET@")
    model, page = str(tmp_path / "m.h5"), str(tmp_path / "m.html")
    words = ["train", address, "--label", "y", "--lambda", "0.1", "--output", model, "--test", address]
    monkeypatch.setattr(sys, "argv", ["distsms", *words])
    reported = importlib.util.find_spec("matplotlib") is not None
    assert main([*words, "--plain", "--report", page] if reported else [*words, "--plain"]) in (0, 8)
    for command in ["info", model, "--json"], ["evaluate", model, address], ["evaluate", model, address, "--json"]:
        assert main(command) == 0
    assert main(["train", address.replace("a.csv", "none.csv"), "--label", "y", "--output", model]) == 1
    server.fault = 403
    assert main(["evaluate", model, address]) == 1
    shown = "".join(capsys.readouterr())
    assert "SECRET" not in shown and server.at("none.csv: the server has no such file") in shown
    assert not reported or "SECRET" not in (tmp_path / "m.html").read_text()
    info = distsms.load_model(model).info
    assert server.at("a.csv") in info["command"] and info["data"]["directory"] == server.at("a.csv")
    assert b"SECRET" not in (tmp_path / "m.h5").read_bytes()


@pytest.mark.parametrize(
    "text, shown",
    [
        ("https://u:p@host/a.csv?t=1,2: was read", "https://host/a.csv: was read"),
        ("read https://u@host/a.csv#t (url='http://h/b?c=1'); and s3://k:s@b/day-?.csv", None),
        ("a?b://c and me@host/x?y", "a?b://c and me@host/x?y"),
    ],
)
def test_addresses_in_texts(text, shown):
    expected = "read https://host/a.csv (url='http://h/b'); and s3://b/day-?.csv" if shown is None else shown
    assert without_credentials(text) == expected


@pytest.mark.parametrize(
    "fault, name, told",
    [
        (None, "b.csv", "/b.csv: the server has no such file"),
        (403, "a.csv", r"/a.csv: the server refuses access \(.*403.*; set the credentials"),
        (500, "a.csv", "/a.csv: the server answered 500, which says that it has failed; try again later"),
        (302, "a.csv", r"/a.csv: the server redirects in a circle; is the address right\?"),
        ("silent", "a.csv", r"/a.csv: the server has not answered for 0\.4 seconds; try again"),
        ("breaks off", "a.csv", "/a.csv: the server does not answer, or broke off"),
        ("breaks off", "a.csv.gz", "/a.csv.gz: the server does not answer, or broke off"),
        ("breaks off", "a.parquet", "/a.parquet: the server does not answer, or broke off"),
        ("no length", "a.csv", "/a.csv: the server does not say how long the file is; download it"),
        (None, "a.npy", "/a.npy: such files are not read from addresses"),
    ],
)
@pytest.mark.serial
def test_faults_of_the_server_are_told(tmp_path, server, monkeypatch, fault, name, told):
    monkeypatch.setattr(addresses, "BUFFER", 2000)
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (10_000,))
    monkeypatch.setattr(addresses, "TIMEOUT", 0.4 if fault == "silent" else 60.0)
    server.files["a.npy"], server.fault = b"x", fault
    with pytest.raises(InputError, match=told):
        convert([server.at(name)], tmp_path / "d", ALONE, label="y")


@pytest.mark.serial
def test_a_host_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"no such host.*; check the address$") as refused:
        convert(["https://nowhere.invalid/a.csv"], tmp_path / "d", ALONE, label="y")
    assert "ssl:" not in refused.value.message


@pytest.mark.serial
def test_a_server_that_is_gone(tmp_path, server):
    address = server.at("a.csv")
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match=r"/a\.csv: the server does not answer, or broke off"):
        convert([address], tmp_path / "d", ALONE, label="y")


@pytest.mark.serial
def test_a_file_that_changes_while_it_is_read(tmp_path, server):
    def told(reports):
        server.files["a.csv"] = server.files["a.csv"].replace(b"1.5", b"2.5")

    with pytest.raises(InputError, match=r"/a\.csv: was changed or replaced while it was read"):
        convert([server.at("a.csv")], tmp_path / "d", ALONE, label="y", show_columns=told)


@pytest.mark.serial
def test_packages_and_kinds_of_addresses(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="addresses of this kind are not known"):
        convert(["what://host/a.csv"], tmp_path / "d", ALONE, label="y")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"are not installed .*: pip install 'distsms\[remote\]'"):
        convert(["https://host/a.csv"], tmp_path / "d", ALONE, label="y")


@pytest.mark.serial
def test_names_of_addresses():
    assert format_of("https://host/folder/a.CSV.gz?version=2#part") == "table"
    assert values_of("https://h/day=1/a.csv?sig=ab/cd=") == {"day": "1"}
    assert format_of("s3://bucket/day=1/a.parquet") == "table" and format_of("https://host/a") == "text"
    assert (
        not addresses.is_address("C:\\a.csv")
        and not addresses.is_address("a//b:c")
        and addresses.is_address("s3://b/c")
    )


@pytest.mark.serial
def test_patterns_and_folders(tmp_path):
    """Of file systems that can list files, as those of objects."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for k in range(3):
        memory.pipe(f"/bucket/part-{k}.csv", f"x,y\n{k},0\n{k + 5},1\n".encode())
    assert convert(["memory://bucket/part-1.csv"], tmp_path / "a", ALONE, label="y").n == 2
    model = distsms.train("memory://bucket/part-*.csv", label="y", lam=0.1, solver="lbfgs")
    assert len(distsms.predict(model, "memory://bucket/part-*.csv")) == 6
    with pytest.raises(InputError, match="no file at this address fits the pattern"):
        distsms.train("memory://bucket/none-*.csv", label="y")
    with pytest.raises(InputError, match=r"is a folder; name the files in it, as in memory://bucket/\*"):
        distsms.train("memory://bucket/", label="y")


@pytest.mark.serial
def test_objects_of_s3(tmp_path, server, monkeypatch):
    pytest.importorskip("s3fs")
    for name, value in (("ENDPOINT_URL", server.at("")[:-1]), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(f"AWS_{name}", value)
    server.files["bucket/a.csv"] = server.files["a.csv"]
    assert convert(["s3://bucket/a.csv"], tmp_path / "d", ALONE, label="y").n == 3000

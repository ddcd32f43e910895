"""What the manual's pages find when they begin."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.models import model
from distsms.python import api
from distsms.shards.sequence_rules import SequenceOptions
from tests.docs import pages
from tests.support.conversion import convert
from tests.support.files import write_anndata, write_csv
from tests.support.program import write_svmlight


def people(path: Path, n: int, seed: int, key: str) -> None:
    """Write a table of people with an income, as CSV or (without the income) as Parquet."""
    rng = np.random.default_rng(seed)
    age, job = rng.integers(18, 80, n), rng.choice(["clerk", "cook", "driver"], n)
    rich = np.where(age + 20 * (job == "clerk") + rng.normal(0, 10, n) > 70, ">50K", "<=50K")
    columns = {key: [f"r{i}" for i in range(n)], "age": age.tolist(), "job": job.tolist()}
    if path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table(columns), path)
    else:
        columns["income"] = rich.tolist()
        write_csv(path, list(columns), zip(*columns.values(), strict=True))


def payments(path: Path, days: range, seed: int) -> None:
    """Write a table of payments, 40 a day, of which about one in twelve is a fraud."""
    rng, n = np.random.default_rng(seed), 40 * len(days)
    amount, country = rng.lognormal(3, 1, n).round(2), rng.choice(["AT", "DE", "FR", "IT"], n)
    fraud = np.log(amount) + 1.5 * (country == "IT") + rng.normal(size=n) > 5.5
    day = np.datetime64("2024-01-01") + np.repeat(days, 40)
    columns = {"payment": [f"p{seed}-{k}" for k in range(n)], "day": day.tolist(), "customer": rng.integers(0, 300, n)}
    columns |= {"country": country, "amount": amount, "isFraud": fraud.astype(int)}
    write_csv(path, list(columns), zip(*columns.values(), strict=True))


def sites(folder: Path) -> None:
    """Write sequences as FASTA with a file of labels, and as lines with the labels."""
    rng = np.random.default_rng(0)
    words, labels = rng.choice(list("ACGTN"), (60, 300), p=[0.3, 0.2, 0.2, 0.29, 0.01]), rng.random(60) < 0.3
    words[labels, 196:199] = list("CAG")
    written = [("".join(word), "+1" if label else "-1") for word, label in zip(words, labels, strict=True)]
    records = [
        f">site{k} label={label} chromosome={k // 10}\n{word[:150]}\n{word[150:]}\n"
        for k, (word, label) in enumerate(written)
    ]
    (folder / "sites.fa").write_text("".join(records))
    (folder / "labels.txt").write_text("".join(f"site{k} {label}\n" for k, (_, label) in enumerate(written)))
    (folder / "sites.txt").write_text("".join(f"{label} {word}\n" for word, label in written))
    alone, how = Communicator(), SequenceOptions(window=(139, 279), degree=3)
    convert([folder / "sites.txt"], folder / "data/sites", alone, sequences=how)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """A folder with the files that the manual's commands name and do not make."""
    pytest.importorskip("pyarrow")
    folder, alone = tmp_path_factory.mktemp("manual"), Communicator()
    for seed, name in enumerate(("train", "test", "part-0", "part-1", "all")):
        write_svmlight(folder / f"{name}.svm", seed=seed, shift=3.0)
    write_svmlight(folder / "new.svm", n=50, p=4)
    for part in folder.glob("part-*.svm"):
        (folder / f"{part.name}.gz").write_bytes(gzip.compress(part.read_bytes()))
    people(folder / "adult.csv", 300, 0, "person")
    people(folder / "adult-test.csv", 100, 1, "person")
    people(folder / "test.csv", 100, 1, "person")
    people(folder / "new.parquet", 50, 2, "customer")
    payments(folder / "payments.csv", range(60), 0)
    payments(folder / "new-payments.csv", range(60, 65), 1)
    visits = [[f"u{k % 9}", f"2024-05-{1 + k % 30:02d}", k % 7, int(k % 7 + k % 2 > 3)] for k in range(60)]
    write_csv(folder / "visits.csv", ["user", "day", "pages", "bought"], visits)
    X = np.random.default_rng(0).normal(size=(60, 3))
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.where(X[:, 0] > 0.5, 1, -1))
    sites(folder)
    cells = {"cell_type": np.where(X[:, 0] > 0.5, "B cell", "T cell"), "_index": np.array([f"c{i}" for i in range(60)])}
    write_anndata(folder / "cells.h5ad", X, ["a", "b", "c"], cells)
    for name in ("train", "test"):
        convert([folder / f"{name}.svm"], folder / "data" / name, alone)
    model.save(folder / "model.h5", api.train(folder / "data/train", lam=1e-2, solver="lbfgs"))
    return folder


@pytest.fixture(scope="session")
def prepared_tables(prepared, tmp_path_factory) -> Path:
    """The same with data sets and models of tables, as the examples of the help texts have them."""
    folder, alone = tmp_path_factory.mktemp("tables") / "here", Communicator()
    shutil.copytree(prepared, folder)
    shutil.rmtree(folder / "data")
    how = {"label": "income", "positive": ">50K", "id": "person"}
    convert([folder / "adult.csv"], folder / "data/train", alone, **how)
    for name in ("test", "new"):
        convert([folder / "adult-test.csv"], folder / "data" / name, alone, like=folder / "data/train", label="income")
    trained = api.train(folder / "data/train", lam=1e-2, solver="lbfgs", at="recall>=0.5", calibrate="sigmoid")
    for name in ("model", "a", "b", "sweep/a", "sweep/b", "scaling/1"):
        (folder / name).parent.mkdir(exist_ok=True)
        model.save(folder / f"{name}.h5", trained)
    (folder / "names.txt").write_text("".join(f"feature {j}\n" for j in range(trained.p)))
    return folder


@pytest.fixture(scope="session")
def demo_output(tmp_path_factory) -> Path:
    """What scripts/demo leaves; it runs once for all pages that begin with it."""
    folder = tmp_path_factory.mktemp("demo")
    pages.run("scripts/demo", folder)
    return folder / "demo-output"


@pytest.fixture
def run_page(prepared, tmp_path, request):
    """A function that runs a page in a folder of its own."""

    def run(page: Path) -> None:
        script, folder = pages.script(page), tmp_path / "page"
        shutil.copytree(prepared, folder)
        if pages.makes_data(script):
            shutil.rmtree(folder / "data")
        if "scripts/demo\n" in script or "demo-output" in script:
            shutil.copytree(request.getfixturevalue("demo_output"), folder / "demo-output")
        pages.run(script.replace("scripts/demo\n", ": scripts/demo\n"), folder)

    return run

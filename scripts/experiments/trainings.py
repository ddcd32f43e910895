"""Train on a grid of measures, values of lambda or values of another option, and print a table of the results.

    . scripts/environment
    python -m scripts.experiments.trainings accuracy a9a a9a.t [--lambdas 1e-2 1e-4 1e-6] [--epsilon 1e-3]
    python -m scripts.experiments.trainings measures w8a w8a.t [--lambdas 1e-3 1e-5] [--max-evaluations 5000]
    python -m scripts.experiments.trainings sweep --history 5 10 20 50 100 -- a9a w8a news20.svm.xz

accuracy   ROCArea and PRBEP at several values of lambda: J, the proved gap, evaluations and seconds of training
           (without loading), and both measures of the test rows.
measures   A model for each measure, compared with the models for the other measures. There is a row for each measure
           that was trained for, and a column for each measure on the test rows. Precision is at K = n+/2 and recall at
           K = 2 n+, where n+ is the number of positives among the training rows for training and among the test rows
           for testing. Error rate and F1 are trained with a constant feature. ROCArea and PRBEP do not depend on it,
           and precision@K and recall@K should not be trained with it. The threshold of a model is the stored one.
sweep      Evaluations to the proof for several values of one option of `distsms train`: a row for each set and
           measure, a column for each value. The default values of `distsms train` were chosen by such tables.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distsms.base.measures import SHOWN
from distsms.cli.types import count, positive
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import add_ranks, add_train_and_test, existing_file, output_of
from scripts.records import Record

OPTIONS = {
    "history": "pairs in the solver's memory",
    "planes": "planes in the proof of the gap",
    "scaling": "how the solver's variables are scaled",
    "c-mu": "fixed widths of smoothing",
    "epsilon": "gaps to prove",
}
"""Options of `distsms train` that `sweep` can vary."""
PROVED_OR_NOT = (0, 3, 4, 5)
"""The exit codes with which `distsms train` has written a model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, lambdas in (("accuracy", [1e-2, 1e-4, 1e-6]), ("measures", [1e-3, 1e-5])):
        command = commands.add_parser(name, help="see above")
        add_train_and_test(command)
        add_ranks(command)
        about = f"weights of the regularizer ({' '.join(f'{lam:g}' for lam in lambdas)})"
        command.add_argument("--lambdas", nargs="+", type=positive, metavar="LAMBDA", default=lambdas, help=about)
        command.add_argument("--epsilon", type=positive, default=1e-3, help="gap to prove (%(default)g)")
        records.add_json(command)
    about = "largest number of evaluations of a run (%(default)s)"
    command.add_argument("--max-evaluations", type=count, default=5000, metavar="N", help=about)
    command = commands.add_parser("sweep", help="see above")
    group = command.add_mutually_exclusive_group(required=True)
    for option, what in OPTIONS.items():
        group.add_argument(f"--{option}", nargs="+", metavar="VALUE", help=what)
    command.add_argument("--lambda", dest="lam", type=positive, default=1e-6, help="weight of the regularizer (1e-6)")
    command.add_argument("--max-evaluations", type=count, default=1000, metavar="N", help=about)
    command.add_argument("--measures", nargs="+", default=["rocarea", "prbep"], metavar="MEASURE")
    command.add_argument("files", nargs="+", type=_data, metavar="FILE", help="svmlight text, or a data set's folder")
    records.add_json(command)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = COMMANDS[args.command](args, Path(folder))
    print(table(found))
    records.write(args.json, "scripts.experiments.trainings", found)


def table(found: list[Record]) -> str:
    """Make a table of the records of any of the three commands."""
    if "option" in found[0]:
        values = dict.fromkeys(record["value"] for record in found)
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for record in found:
            cell = f"{record['evaluations']}{_ending(record)}"
            rows.setdefault((record["set"], str(SHOWN.get(record["measure"], record["measure"]))), {})[
                record["value"]
            ] = cell
        header = ["set", "measure", *(f"{found[0]['option']} {value}" for value in values)]
        return markdown(header, [[*key, *(cells[value] for value in values)] for key, cells in rows.items()])
    tested = list(found[0]["test"])
    header = [
        "set",
        "trained for",
        "lambda",
        "J",
        "proved gap",
        "evaluations",
        "seconds",
        *(f"test {name} [%]" for name in tested),
    ]
    lines = [
        [
            record["set"],
            str(SHOWN.get(record["measure"], record["measure"])),
            f"{record['lambda']:g}",
            f"{record['J']:.6f}",
            f"{record['gap']:.1e}{_ending(record)}",
            str(record["evaluations"]),
            f"{record['seconds']:.2f}",
            *(f"{100 * record['test'][name]:.2f}" for name in tested),
        ]
        for record in found
    ]
    return markdown(header, lines)


def _ending(record: Record) -> str:
    return "" if record["status"] == "proved" else f" ({record['status']})"


def accuracy(args: argparse.Namespace, work: Path) -> list[Record]:
    """Train a model for both measures at each lambda."""
    _shard_both(args, work)
    found = []
    for measure in ("rocarea", "prbep"):
        for lam in args.lambdas:
            result = _train(work / "train", work, args.ranks, "--measure", measure, "--lambda", lam, *_goal(args))
            test = _evaluate(work, args.ranks)
            measures = {"ROCArea": test["rocarea"], "PRBEP": test["prbep"]}
            found.append({"set": _name(args.train), "measure": measure, "lambda": lam, **result, "test": measures})
            _say(found[-1])
    return found


def measures(args: argparse.Namespace, work: Path) -> list[Record]:
    """Train a model for each measure at each lambda, and evaluate each model with all measures."""
    n_pos = _shard_both(args, work)
    half, double = {name: n // 2 for name, n in n_pos.items()}, {name: 2 * n for name, n in n_pos.items()}
    trained = {
        "ROCArea": (["rocarea"], "rocarea"),
        "PRBEP": (["prbep"], "prbep"),
        "error rate": (["error-rate", "--bias"], "error_rate"),
        "F1": (["f1", "--bias"], "f1"),
        "precision@n+/2": ([f"precision@{half['train']}"], f"precision@{half['test']}"),
        "recall@2n+": ([f"recall@{double['train']}"], f"recall@{double['test']}"),
    }
    found = []
    for name, (measure, _) in trained.items():
        for lam in args.lambdas:
            options = ("--measure", *measure, "--lambda", lam, *_goal(args), "--max-evaluations", args.max_evaluations)
            result = _train(work / "train", work, args.ranks, *options)
            test = _evaluate(work, args.ranks, half["test"]) | _evaluate(work, args.ranks, double["test"])
            by_all = {other: test[key] for other, (_, key) in trained.items()}
            found.append({"set": _name(args.train), "measure": name, "lambda": lam, **result, "test": by_all})
            _say(found[-1])
    return found


def sweep(args: argparse.Namespace, work: Path) -> list[Record]:
    """Train a model for each measure, on each file and with each value of the option that varies."""
    option = next(name for name in OPTIONS if getattr(args, name.replace("-", "_")))
    found = []
    for file in args.files:
        data = file if file.is_dir() else work / "data"
        if data != file:
            output_of("shard", file, data, "--quiet", "--overwrite")
        for measure in args.measures:
            for value in getattr(args, option.replace("-", "_")):
                options = ("--measure", measure, "--lambda", args.lam, f"--{option}", value)
                result = _train(data, work, 1, *options, "--max-evaluations", args.max_evaluations)
                record = {"set": _name(file), "measure": measure, "lambda": args.lam, "option": option, "value": value}
                found.append(record | result)
                _say(found[-1])
    return found


COMMANDS: dict[str, Callable[[argparse.Namespace, Path], list[Record]]] = {
    "accuracy": accuracy,
    "measures": measures,
    "sweep": sweep,
}


def _data(name: str) -> Path:
    return Path(name) if Path(name, "manifest.json").is_file() else existing_file(name)


def _shard_both(args: argparse.Namespace, work: Path) -> dict[str, int]:
    """Convert the text of training and test rows, and return how many positive rows each has."""
    for part in ("train", "test"):
        output_of("shard", getattr(args, part), work / part, "--quiet", ranks=args.ranks)
    return {part: json.loads(output_of("info", work / part, "--json"))["n_pos"] for part in ("train", "test")}


def _goal(args: argparse.Namespace) -> tuple[object, ...]:
    return "--epsilon", args.epsilon


def _train(data: Path, work: Path, ranks: int, *options: object) -> Record:
    """Train a model, work/model.h5, and return J, the gap and other numbers that are stored in it."""
    model = work / "model.h5"
    output_of("train", data, *options, "--output", model, "--quiet", ranks=ranks, codes=PROVED_OR_NOT)
    info = json.loads(output_of("info", model, "--json"))
    return {key: info[key] for key in ("J", "gap", "status", "evaluations", "seconds")}


def _evaluate(work: Path, ranks: int, k: int | None = None) -> dict[str, Any]:
    """Measure the model on the test rows."""
    at_k = () if k is None else ("--k", k)
    return dict(json.loads(output_of("evaluate", work / "model.h5", work / "test", *at_k, "--json", ranks=ranks)))


def _name(file: Path) -> str:
    return file.name.removesuffix(".xz").removesuffix(".gz").removesuffix(".bz2").removesuffix(".train")


def _say(record: Record) -> None:
    """Show that a run is done."""
    value = f", {record['option']} {record['value']}" if "option" in record else ""
    counted = f"{record['evaluations']} evaluations, {record['status']}"
    print(f"{record['set']}, {record['measure']}, lambda {record['lambda']:g}{value}: {counted}", flush=True)


if __name__ == "__main__":
    main()

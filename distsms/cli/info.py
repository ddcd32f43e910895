"""The command `distsms info`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_ERROR, EXIT_OK, InputError
from distsms.base.formatting import format_bytes, format_number, format_table, to_json
from distsms.base.measures import SHOWN
from distsms.base.wording import printable
from distsms.cli.terminal import Speaker
from distsms.cli.types import add_options

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

SHOWN_CATEGORIES = 20
MORE = "--all shows everything, --columns each column, --usage what the training took"
USAGE = "[DATA|MODEL...] [options]"
EPILOG = """\
The command starts neither MPI nor PETSc, so that it may be used on a login node.

examples:
  distsms info
  distsms info data/train --verify
  distsms info model.h5
  distsms info model.h5 --columns
  distsms info sweep/*.h5
  distsms info scaling/*.h5 --usage
"""

OPTIONS = f"""\
paths DATA|MODEL  A data set, a model, or several models; without any, the versions of all libraries.
--all  Show everything that a model says of itself.
--columns  List all columns of the table that a data set or a model was made from, with kinds, features, what missing
    values count as, and {SHOWN_CATEGORIES} categories; --all shows all of them.
--verify  Recompute the checksums of a data set or a model.
--usage  Show what training the models took on the busiest rank: seconds by phase, bytes, memory.
--json  Print one JSON object, or for several models a list of them.
--config  Print the options of the command that made a model as a TOML file, which --config of that command takes.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS, {"paths": {"nargs": "*"}})
    parser.set_defaults(mpi=False)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Print what the data sets or models contain. Runs in one process, without MPI."""
    from distsms.cli.config import as_toml
    from distsms.models import decision_text
    from distsms.parallel.mpi import describe_launcher
    from distsms.workflow.info import brief, describe_data, describe_model, refuse_other_folder
    from distsms.workflow.provenance import versions

    paths, say = args.paths, Speaker(True)
    if missing := [path for path in paths if not os.path.exists(path)]:
        raise InputError(f"{missing[0]}: no such file or folder")
    for path in paths:
        refuse_other_folder(path)
    for name, others in (("columns", ("verify", "config")), ("verify", ()), ("config", ("json",))):
        if getattr(args, name) and (len(paths) != 1 or args.usage or any(getattr(args, other) for other in others)):
            without = " or ".join(f"--{other}" for other in ("usage", *others))
            one = "model" if name == "config" else "data set or model"
            raise InputError(f"--{name} is for one {one}, without {without}")
    if args.columns:
        print(_columns(paths[0], args.json, None if args.all else SHOWN_CATEGORIES))
        return EXIT_OK
    if len(paths) > 1 or args.usage:
        if other := [path for path in paths if os.path.isdir(path)]:
            raise InputError(f"{other[0]}: is a folder; several arguments, and those of --usage, must all be models")
        models = [describe_model(path) for path in paths]
        print(to_json(models, indent=1) if args.json else (_usages if args.usage else _results)(models))
        shown = () if args.json or args.usage else models
        say.close([f"{each['model']}: {text}" for each in shown for text in each.get("warnings", [])], "red")
        return EXIT_OK
    contents: dict[str, Any] = (
        versions(load_mpi=True) | {"mpirun": describe_launcher()}
        if not paths
        else describe_data(paths[0], args.json)
        if os.path.isdir(paths[0])
        else describe_model(paths[0])
    )
    verified = _verified(paths[0]) if args.verify else {}
    problems = verified.get("problems", [])
    if args.config:
        if not contents.get("config"):
            raise InputError("--config takes one model that a command has made; of others, no file repeats the run")
        print(f"# {printable(contents['command'])}\n{as_toml(contents['config'])}")
    elif args.json:
        print(to_json(contents | ({"verified": verified} if verified else {}), indent=1))
    else:
        if paths and not os.path.isdir(paths[0]):
            contents = contents if args.all else brief(contents) | {"more": MORE}
            for name, in_words in (("decision", decision_text.decision), ("calibration", decision_text.calibration)):
                if name in contents:
                    contents[name] = "; ".join(in_words(contents[name]))
        if "search" in contents:
            contents["search"] = contents["search"]["reason"]
        warnings = contents.pop("warnings", [])
        # The text of the configuration is the command.
        contents = {name: value for name, value in contents.items() if value not in ("", None) and name != "config"}
        width = max(map(len, contents))
        for name, value in contents.items():
            say(f"{name:<{width}}  " + ("\n" + " " * (width + 2)).join(_lines(name, value)))
        say.close(warnings, "red")
    if verified and not args.json:
        print("\n".join(map(printable, problems or [verified["checksum"]])))
    return EXIT_ERROR if problems else EXIT_OK


def _verified(path: str) -> dict[str, Any]:
    """Return what became of the comparison with the checksums, in words, and each problem."""
    if not os.path.isdir(path):  # it was compared with the checksum when it was read
        from distsms.models.model import has_checksum

        without = "an earlier version wrote this model, without a checksum"
        return {"checksum": "the checksum is right" if has_checksum(path) else without, "problems": []}
    from distsms.shards.manifest import verify

    problems = verify(path)
    return {"checksum": "not every checksum is right" if problems else "every checksum is right", "problems": problems}


def _quoted(category: str) -> str:
    """Return a category as a field of a list: in quotes, if it has a comma or quotes itself."""
    return '"' + category.replace('"', '""') + '"' if "," in category or '"' in category else category


def _columns(path: str, as_json: bool, most: int | None) -> str:
    """Return a list of all columns of a data set or a model, each in a line, with at most so many categories."""
    from distsms.workflow.info import describe_columns

    columns, attributes = describe_columns(path)
    if as_json:
        records = [column.as_json() | {"features": column.n_features} for column in columns]
        return to_json({"columns": records, "attributes": attributes}, indent=1)
    rows = [("column", "kind", "features", "missing values", "categories")]
    for column in columns:
        every = list(column.categories or ())
        shown = every if most is None or len(every) <= most + 1 else every[:most]
        left = [f"({len(every) - len(shown):,} more; --all)"] * (len(shown) < len(every))
        categories = [*map(_quoted, shown), *left, *["(other)"] * column.other]
        features, missing = f"{column.n_features:,}", column.describe_missing()
        rows.append((column.name, column.kind, features, missing, ", ".join(categories)))
    widths = [*(max(len(row[k]) for row in rows) for k in range(4)), 0]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(printable(line) for line in [*(lines if columns else []), *attributes])


def _results(models: list[dict[str, Any]]) -> str:
    """Return a table of what each model was trained for, and how its training ended."""
    header = ["model", "measure", "lambda", "status", "J", "gap", "evaluations", "seconds"]
    header[3:3] = sparse = ["l1", "nonzeros"] if any(model.get("l1") for model in models) else []
    numbers = {"J": 6, "gap": 3, "evaluations": 6, "seconds": 3}  # how many digits are shown
    sets = [name for name in ("training", "test") if any(model.get(name) for model in models)]
    columns = [(name, measure) for name in sets for measure in ("rocarea", "prbep")]
    rows = []
    for model in models:
        measured = [(model.get(name) or {}).get(measure) for name, measure in columns]
        rows.append(
            [
                model["model"],
                str(model.get("measure", "-")),
                f"{model.get('lambda', float('nan')):g}",
                *(f"{model.get(name, 0):g}" for name in sparse),
                _status(model),
            ]
            + [format_number(model.get(name), f".{digits}g") for name, digits in numbers.items()]
            + [format_number(value, ".5g") for value in measured]
        )
    return format_table([*header, *[f"{name} {SHOWN[measure]}" for name, measure in columns]], rows)


def _usages(models: list[dict[str, Any]]) -> str:
    """Return a table of the resources that the trainings took, in each phase on the rank that took longest."""
    usages = [model.get("usage") or {} for model in models]
    phases = list(dict.fromkeys(phase for usage in usages for phase in usage.get("seconds", {})))
    rows = []
    for model, usage in zip(models, usages, strict=True):
        evaluations, seconds = model.get("evaluations") or 1, usage.get("seconds", {})
        last_start = usage.get("evaluations", evaluations)
        shown = str(evaluations) if last_start == evaluations else f"{last_start} of {evaluations}"
        rows.append(
            [model["model"], str(model.get("ranks", "-")), shown]
            + [format_number((model.get("seconds") or 0.0) / evaluations, ".3g")]
            + [format_number(seconds.get(phase), ".3g") for phase in phases]
            + [format_bytes(usage[name]) if name in usage else "-" for name in ("bytes_sent", "peak_memory")]
        )
    return format_table(
        ["model", "ranks", "evaluations", "s/evaluation", *[f"{phase} [s]" for phase in phases], "sent", "peak memory"],
        rows,
    )


def _status(model: dict[str, Any]) -> str:
    """Return how training ended, and whether its model is vacuous; in older models, whether J is near J(0)."""
    J, at_zero = model.get("J"), model.get("J_at_zero")
    remark = ", vacuous" if model.get("vacuous") else ""
    if "vacuous" not in model and J is not None and at_zero is not None and (1 - 1e-3) * at_zero <= J:
        remark = ", J(0)"
    return f"{model.get('status', '-')}{remark}"


def _lines(name: str, value: Any, prefix: str = "") -> list[str]:
    """Return a value as lines of text: what is nested has a line for each of its parts, and what is empty has none."""
    parts = dict(enumerate(value)) if isinstance(value, (list, tuple)) else value
    if not isinstance(parts, dict) or not any(isinstance(item, dict) for item in parts.values()):
        return [prefix + _shown(name, value)]
    flat = {key: item for key, item in parts.items() if not isinstance(item, dict) and item not in ("", [], (), None)}
    lines = [prefix + _shown("", flat)] if flat else []
    for key, item in parts.items():
        if isinstance(item, dict):
            full = {part: each for part, each in item.items() if each not in ("", [], (), None)}
            lines += _lines("", full, prefix if isinstance(value, (list, tuple)) else f"{prefix}{key} ")
    return lines


def _shown(name: str, value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(key, item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown("", item) for item in value)
    if name == "bytes":
        return format_bytes(value)
    return f"{value:.8g}" if isinstance(value, float) else str(value)

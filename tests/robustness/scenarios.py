"""The commands and the faults that `tests.robustness.schedules` draws."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections import Counter
from typing import Any, NamedTuple

from tests.support.disturbed import Fault

LAMBDA = 1e-2
MEASURES = ("rocarea", "prbep", "error-rate", "logistic", "pauc@0.3", "gauc@pairs", "normal-auc", "f1", "precision@8")
CUTTING = ("f1", "precision@8")
KINDS = ("death", "death", "node", "power", "signal", "stop", "write", "write", "read", "short", "pieces")
KINDS += ("unreadable", "exchange", "stale")
"""Kinds of faults, as often as they are drawn; see `Fault`."""


class Scenario(NamedTuple):
    """A command, and where its ranks run."""

    command: str
    words: tuple[str, ...]  # {home} stands for the folder of the inputs, {out} for that of the outputs
    size: int
    nodes: int
    measure: str = ""
    streams: bool = False
    survives: bool = False

    @property
    def output(self) -> str:
        """The output: a file or a folder below {out}."""
        return {"train": "model.h5", "path": "path", "predict": "scores.csv"}.get(self.command, "set")

    @property
    def reads(self) -> list[tuple[str, str]]:
        """The files that the command reads, each with another content for it."""
        if self.command == "shard":
            names = [word.partition("/")[2] for word in self.words[:1]]
        else:
            folder = "groups" if self.measure.startswith("gauc") else "data"
            names = [f"{folder}/{name}" for name in ("manifest.json", "shard-00000.h5", "shard-00001.h5")]
            names += ["model.h5"] if self.command == "predict" else []
        return [(f"{{home}}/{name}", f"{{home}}/other-{name}") for name in names]


def drawn(chance: random.Random) -> Scenario:
    """Draw a command."""
    size = chance.choice((1, 2, 2, 3, 3, 3, 4, 5, 6))
    nodes = chance.randint(1, size)
    command = chance.choice((*5 * ["train"], "path", "shard", "shard", "predict", "features"))
    words: list[str]
    if command == "train":
        measure = chance.choice(MEASURES)
        solver = "bmrm" if measure in CUTTING else chance.choice(("lbfgs", "lbfgs", "lmvm", "agm", "bmrm"))
        of_groups = measure.startswith("gauc")
        words = ["{home}/groups" if of_groups else "{home}/data", "--lambda", str(LAMBDA), "--solver", solver]
        words += ["--within-groups", "pairs"] if of_groups else ["--measure", measure]
        orderings = {name: ("gather", "exchange", "bins", "auto") for name in ("rocarea", "pauc@0.3")}
        orderings["prbep"] = ("gather", "exchange", "auto")
        ordering = chance.choice(orderings.get(measure, ("auto",)))
        words += ["--ordering", ordering, "--no-check", "--bias", "0", "--output", "{out}/model.h5"]
        words += ["--epsilon", "3e-2" if solver == "agm" else "1e-3"]  # agm would only repeat itself
        survives = size > 1 and chance.random() < 0.25
        step = "root" if solver == "lmvm" else chance.choice(("root", "spread"))  # PETSc's vectors cannot be spread
        words += ["--survive"] if survives else ["--step", step]
        if chance.random() < 0.6:
            words += [
                "--checkpoint",
                "{out}/state",
                "--resume",
                "--checkpoint-every",
                chance.choice(("0.001s", "0.03s")),
            ]
        if chance.random() < 0.3:
            words += ["--trace", "{out}/trace.jsonl"]
        streams = chance.random() < 0.25
        words += ["--memory", "1GiB"] if streams else []  # `streaming` leaves only a little of it
        return Scenario(command, tuple(words), size, nodes, measure, streams, survives)
    if command == "path":
        measure = chance.choice(("rocarea", "prbep", "logistic"))
        words = ["{home}/data", "--lambdas", "1", "0.1", "--folds", "2", "--measure", measure, "--no-check"]
        words += ["--no-extend", "--output", "{out}/path", "--solver", "lbfgs"]
        return Scenario(command, tuple(words), size, nodes, measure)
    if command == "shard":
        text = chance.choice(("{home}/rows.svm", "{home}/rows.csv"))
        words = [text, "{out}/set", "--shards", str(chance.randint(1, 4)), "--overwrite"]
        words += ["--label", "y"] if text.endswith("csv") else []
        return Scenario(command, tuple(words), size, nodes)
    if command == "predict":
        return Scenario(command, ("{home}/model.h5", "{home}/data", "--output", "{out}/scores.csv"), size, nodes)
    made = chance.choice(("--bins", "--trees"))
    words = ["{home}/data", "{out}/set", made, "3", "--overwrite"]
    return Scenario(command, tuple(words), size, nodes)


def faults_of(chance: random.Random, scenario: Scenario, counts: Counter[tuple[int, str]]) -> list[Fault]:
    """Draw what happens to a run of which `counts` says what its ranks do if nothing happens."""
    drawn_faults = list[Fault]()
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
        kind = chance.choice(KINDS)
        rank = chance.randrange(scenario.size)
        of = {"write": "write", "short": "write", "read": "read"}.get(kind, "step")
        at = chance.randint(1, max(1, counts[rank, of]))
        detail: Any = None
        if kind == "signal":
            detail = chance.choice((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT))
            if chance.random() < 0.3:
                drawn_faults.append(Fault(kind, rank, at + chance.randint(1, 20), detail))
        elif kind == "stop":
            detail = chance.choice((0, 60, 86400))
        elif kind in ("write", "read"):
            detail = chance.choice(
                (errno.EIO, errno.ENOSPC) if kind == "write" else (errno.EIO, errno.ESTALE, errno.ENOENT)
            )
        elif kind in ("exchange", "stale", "unreadable"):
            place, other = chance.choice(scenario.reads)
            if kind == "stale":
                rank = chance.randrange(scenario.nodes)
                place, other = (os.path.dirname(path) + "/" if path.count("/") > 1 else path for path in (place, other))
            detail = place if kind == "unreadable" else (place, other)
        drawn_faults.append(Fault(kind, rank, at, detail))
    return drawn_faults

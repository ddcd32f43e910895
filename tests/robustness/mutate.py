#!/usr/bin/env python3
"""Mutation testing: change the package in one small place, and see whether a test of that sub-package fails.

Each mutant is one change of an expression or statement: another comparison or arithmetic operator, a number increased
by one, `and` instead of `or`, a negated condition, or a statement removed. The program draws a sample of all mutants. A
mutant is killed if the tests in tests/PACKAGE fail, crash, or do not end in time; it survives if they all pass. The
program prints survivors as differences. Some of them change nothing that a test could observe (a tolerance, a block
size, the speed); the others show that a test is missing.

    python tests/robustness/mutate.py losses optim --sample 20 --seed 1
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Mutant(NamedTuple):
    """A mutant: the file, the line of the change, and the text of the changed file."""

    file: Path
    line: int
    text: str


def places(tree: ast.Module) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield the line of each possible change, and the function that makes it in the tree."""
    skipped = {id(child) for node in ast.walk(tree) for part in _unobserved(node) for child in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield node.lineno, lambda node=node: node.ops.__setitem__(0, COMPARISONS[type(node.ops[0])]())
        if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
            yield node.lineno, lambda node=node: setattr(node, "op", ARITHMETIC[type(node.op)]())
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node.lineno, lambda node=node: setattr(node, "value", node.value + 1)
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node.lineno, lambda node=node: setattr(node, "value", not node.value)
        if isinstance(node, ast.BoolOp):
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield node.lineno, lambda node=node, other=other: setattr(node, "op", other())
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node.lineno, lambda node=node: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield node.lineno, lambda node=node: _leave_out(tree, node)


def _unobserved(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that tests need not check: annotations, decorators, messages, code for mypy."""
    parts: list[Any] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    if isinstance(node, ast.Raise | ast.JoinedStr):
        parts.append(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        parts.append(node)
    if isinstance(node, ast.FunctionDef):
        parts += node.decorator_list
    return [part for part in parts if part is not None]


def _leave_out(tree: ast.Module, statement: ast.stmt) -> None:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and statement in body:
                body[body.index(statement)] = ast.Pass()
                return


def mutants(package: str, sample: int, seed: int) -> list[Mutant]:
    """Draw a random sample of the mutants of a sub-package."""
    drawn = []
    for file in sorted((ROOT / "distsms" / package).rglob("*.py")):
        count = len(list(places(ast.parse(file.read_text()))))
        drawn += [(file, number) for number in range(count)]
    random.Random(seed).shuffle(drawn)
    found = []
    for file, number in drawn[:sample]:
        tree = ast.parse(file.read_text())
        line, change = list(places(tree))[number]
        change()
        found.append(Mutant(file, line, ast.unparse(ast.fix_missing_locations(tree)) + "\n"))
    return found


def killed(mutant: Mutant, tests: list[str], copy: Path, seconds: float, ranks: int) -> bool:
    """Return whether these tests fail with the change, which is made in a copy of the project.

    The file's time is restored, too.
    """
    place = copy / mutant.file.relative_to(ROOT)
    before, stamp = place.read_bytes(), place.stat()
    try:
        place.write_text(mutant.text)
        return not all(passes(tests, copy, seconds, size) for size in (1, ranks)[: 1 + (ranks > 1)])
    finally:
        place.write_bytes(before)
        os.utime(place, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def nearest_first(tests: list[str], mutant: Mutant) -> list[str]:
    """Return the test files in these folders, those first whose names are most like that of the changed file.

    The first failure ends a run, so that most mutants take no longer than the tests of their own file.
    """
    files = [str(file.relative_to(ROOT)) for test in tests for file in sorted((ROOT / test).rglob("test_*.py"))]
    own = mutant.file.stem
    files.sort(key=lambda file: -difflib.SequenceMatcher(None, own, Path(file).stem.removeprefix("test_")).ratio())
    return files or tests


def passes(tests: list[str], copy: Path, seconds: float, ranks: int = 1) -> bool:
    """Return whether these unit tests pass in the copy and in time, on one rank or on several simulated ones."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
    words += ["-m", "not e2e" + " and not serial" * (ranks > 1), "--ranks", str(ranks), *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["NUMBA_CACHE_DIR"] = str(copy / "kernels")  # compiled mutants stay in the copy
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=copy, env=environment, **quiet) as job:  # type: ignore[call-overload]
        try:
            return job.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            job.terminate()
            return False


def described(mutant: Mutant) -> str:
    """Return the mutant's file and line, and the lines that it removes and adds."""
    plain = ast.unparse(ast.parse(mutant.file.read_text())).splitlines()
    changed = difflib.unified_diff(plain, mutant.text.splitlines(), lineterm="", n=0)
    difference = [row for row in changed if row[0] in "+-" and row[:3] not in ("+++", "---")]
    return "\n    ".join([f"{mutant.file.relative_to(ROOT)}:{mutant.line}", *difference])


def main() -> int:
    """Print the score of each sub-package and the survivors; return 1 if tests fail without any change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="sub-packages of distsms, such as losses")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each sub-package (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (%(default)s)")
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        help="also run the survivors of one process on this number of ranks (%(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried at the same time (%(default)s)")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="test files to run (all of the sub-package)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the scores and survivors to a file")
    parser.add_argument(
        "--again", type=Path, metavar="FILE",
        help="run only the survivors in FILE, which --json wrote for the same sample",
    )  # fmt: skip
    args = parser.parse_args()
    known = json.loads(args.again.read_text()) if args.again else None
    scores = {}
    with tempfile.TemporaryDirectory(prefix="distsms-") as folder:
        copy = Path(folder) / "project"
        shutil.copytree(
            ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".git", "build", ".hypothesis")
        )
        for package in args.packages:
            tests = args.tests or [f"tests/{package}"]
            start = time.monotonic()
            if not passes(tests, copy, 3600):
                print(f"{package}: the tests fail without any change", file=sys.stderr)
                return 1
            limit = 60 + 3 * (time.monotonic() - start)
            drawn = {described(mutant): mutant for mutant in mutants(package, args.sample, args.seed)}
            again = drawn if known is None else known[package]["survivors"]
            if set(again) - set(drawn):
                print(
                    f"{package}: the sub-package, --sample or --seed has changed since {args.again} was written",
                    file=sys.stderr,
                )
                return 1
            copies = queue.SimpleQueue[Path]()
            for number in range(args.jobs):
                copies.put(copy if number == 0 else shutil.copytree(copy, Path(folder) / f"{package}-{number}"))

            def survives(name: str, drawn=drawn, tests=tests, limit=limit, copies=copies) -> str:  # type: ignore[no-untyped-def]
                place = copies.get()
                try:
                    dead = killed(drawn[name], nearest_first(tests, drawn[name]), place, limit, args.ranks)
                finally:
                    copies.put(place)
                if not dead:
                    print(name, flush=True)
                return "" if dead else name

            with ThreadPoolExecutor(args.jobs) as pool:
                survivors = [name for name in pool.map(survives, again) if name]
            scores[package] = {"mutants": len(drawn), "killed": len(drawn) - len(survivors), "survivors": survivors}
            print(f"{package}: {len(drawn) - len(survivors)} of {len(drawn)} mutants are killed", flush=True)
            if args.json:
                args.json.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

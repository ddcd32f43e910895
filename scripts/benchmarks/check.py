"""Find kernels that have become slower: compare their time ratios to NumPy and SciPy with stored ones.

    . scripts/environment
    python -m scripts.benchmarks.check            # exit code 1 if a kernel is 1.4 times as slow as it was
    python -m scripts.benchmarks.check --renew    # store today's ratios

A ratio is the shortest time of a kernel divided by the shortest time of the other library, over many short rounds in
which they take turns. So other programs on the machine hardly change it. Kernels that seem slow are tried again
before the check fails. The stored ratios are those of one processor and one version of NumPy and of SciPy. With others,
a kernel may be three times as slow before the check fails. Renew the ratios after a change that makes a kernel faster,
or where the check says that they are of another machine.
"""

from __future__ import annotations

import os

for name in ("OMP", "OPENBLAS", "MKL"):  # one core; before NumPy is loaded
    os.environ[f"{name}_NUM_THREADS"] = "1"

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distsms.workflow.provenance import versions
from scripts import records
from scripts.benchmarks.kernels import Kernel, kernels
from scripts.benchmarks.measuring import timed
from scripts.compare.tables import markdown

STORED = Path(__file__).with_name("ratios.json")
ENTRIES = 100_000  # so few that a round is seldom interrupted, and that the rows stay in the caches
SECONDS, TRIES = 1.5, 3
SLOWER, ELSEWHERE = 1.4, 3.0
"""How many times as slow as stored a kernel may be, on the machine of the stored ratios and on others. The first number
is below 1.5, so that a kernel that became 1.5 times slower is found in spite of a little noise.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true", help="store the ratios of this machine")
    args = parser.parse_args()
    known = list(kernels(ENTRIES))
    if args.renew:
        found = lowest(known, lambda ratios: True)
        rows: list[records.Record] = [{"kernel": name, "ratio": ratio} for name, ratio in found.items()]
        records.write(STORED, "scripts.benchmarks.check", rows)
        print(f"stored in {STORED}")
        return
    file = records.read(STORED)
    stored = {row["kernel"]: row["ratio"] for row in file["records"]}
    if set(stored) != {kernel.name for kernel in known}:
        sys.exit("check: the kernels are not those of the stored ratios; run it with --renew")
    factor = SLOWER if same_machine(file) else ELSEWHERE
    found = lowest(known, lambda ratios: bool(slow(ratios, stored, factor)))
    lines = [
        [name, f"{stored[name]:.3g}", f"{ratio:.3g}", f"{ratio / stored[name]:.2f}"] for name, ratio in found.items()
    ]
    print(markdown(["kernel", "stored time ratio", "time ratio now", "times as slow"], lines))
    if factor == ELSEWHERE:
        print(f"The stored ratios are of another processor or version of NumPy or SciPy: up to {factor:g} is accepted.")
    if failed := slow(found, stored, factor):
        sys.exit(f"check: more than {factor:g} times as slow as stored: {'; '.join(failed)}")


def lowest(known: list[Kernel], again: Callable[[Mapping[str, float]], bool]) -> dict[str, float]:
    """Return the lowest ratio of each kernel over some tries; there is another try while `again` wants one."""
    found: dict[str, float] = {}
    for _ in range(TRIES):
        for name, ratio in ratios_of(known).items():
            found[name] = min(ratio, found.get(name, ratio))
        if not again(found):
            break
    return found


def ratios_of(known: list[Kernel]) -> dict[str, float]:
    """Return the time of each kernel divided by that of the other library, both the shortest over many rounds."""
    found = {}
    for kernel in known:
        times = timed({"ours": kernel.ours, "theirs": kernel.theirs}, SECONDS / len(known))
        found[kernel.name] = float(times["ours"].min() / times["theirs"].min())
    return found


def slow(found: Mapping[str, float], stored: Mapping[str, float], factor: float) -> list[str]:
    """Return the kernels whose ratio is more than `factor` times the stored one."""
    return [name for name, ratio in found.items() if ratio > factor * stored[name]]


def same_machine(file: dict[str, Any]) -> bool:
    """Return whether the processor, and NumPy and SciPy but for the last part of the version, are those of a file."""
    here = {"machine": records.machine(), "versions": versions()}

    def what(of: dict[str, Any]) -> list[str]:
        releases = [of["versions"][library].rpartition(".")[0] for library in ("numpy", "scipy")]
        return [of["machine"]["processor"], *releases]

    return what(here) == what(file)


if __name__ == "__main__":
    main()

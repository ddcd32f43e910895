"""Train with certificates, and let the checker that knows nothing of distsms derive the lower bounds again.

    . scripts/environment
    python -m scripts.experiments.certificates adult9=adult9.train.xz news20=news20.xz dna=dna.train.xz [--json FILE]

Each set is svmlight text or text of sequences. The bounds of coded columns (sequences) are derived by `distsms.verify`,
since the checker, scripts/verify_certificate.py, does not read codes. The table has the bound that the run has proved,
that of the checker, the gap with the latter, how many evaluations were made once more, and what that took.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import distsms
from distsms.base.measures import RANKING, SHOWN
from distsms.cli.types import positive
from distsms.shards.manifest import read_manifest
from scripts import records, verify_certificate
from scripts.compare.tables import markdown
from scripts.experiments.common import named_files, open_bytes, run_program
from scripts.records import Record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=named_files, metavar="NAME=TEXT", help="the sets, see above")
    about = "weights of the regularizer (1e-2 1e-4 1e-6)"
    parser.add_argument("--lambdas", nargs="+", type=positive, default=[1e-2, 1e-4, 1e-6], metavar="LAMBDA", help=about)
    parser.add_argument("--time-limit", type=positive, default=600.0, metavar="SECONDS", help="of each run (600)")
    records.add_json(parser)
    args = parser.parse_args()
    found: list[Record] = []
    for name, (path, *_) in args.sets:
        with tempfile.TemporaryDirectory() as folder:
            with open_bytes(path) as lines:
                kind = [] if b":" in lines.readline() else ["--strings"]
            run_program("shard", path, Path(folder) / "d", "--quiet", *kind)
            found += runs(name, Path(folder), args.lambdas, args.time_limit)
        records.write(args.json, "scripts.experiments.certificates", found)
    print(table(found))


def runs(name: str, folder: Path, lambdas: Sequence[float], time_limit: float) -> list[Record]:
    """Train for both measures at each lambda, and check each certificate."""
    data, model, certificate, found = folder / "d", folder / "m.h5", folder / "c.h5", []
    coded, n = bool(read_manifest(data).coded), read_manifest(data).n
    for measure in RANKING:
        for lam in lambdas:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                own: dict[str, Any] = {
                    "check": False,
                    "certificate": certificate,
                    "time_limit": time_limit,
                    "solver": "lbfgs",
                }
                trained = distsms.train(data, measure=measure, lam=lam, **own)
            distsms.save_model(model, trained)
            begun = time.perf_counter()
            if coded:
                D = distsms.verify(model, data, certificate=certificate).lower_bound
            else:
                with contextlib.redirect_stdout(io.StringIO()):
                    D = float(verify_certificate.main([str(model), str(certificate), str(data)])[0])
            info, certified = trained.info, trained.info["certificate"]
            numbers = {key: info[key] for key in ("J", "lower_bound", "gap", "evaluations", "seconds", "status")}
            numbers |= {"bound": certified["bound"], "points": certified["points"], "certify": certified["seconds"]}
            numbers |= {"D": D, "check": time.perf_counter() - begun, "bytes": certificate.stat().st_size}
            found.append({"set": name, "n": n, "measure": measure, "lambda": lam, "coded": coded, **numbers})
            print(f"{name} {measure} {lam:g}: {info['lower_bound']:.8f} {D:.8f}", flush=True)
    return found


def table(found: Sequence[Record]) -> str:
    """Make the table of the bounds."""
    header = ["set", "trained for", "lambda", "J", "bound of the run", "of the checker", "gap with it", "evaluations"]
    header += ["again", "seconds of both", "of the check"]
    lines = [
        [
            f"{record['set']}{' (codes)' * record['coded']}",
            SHOWN[record["measure"]],
            f"{record['lambda']:g}",
            f"{record['J']:.8f}",
            f"{record['lower_bound']:.8f}",
            f"{record['D']:.8f}",
            f"{record['J'] - record['D']:.2g}",
            f"{record['evaluations']}",
            f"{record['points']}",
            f"{record['seconds']:.2f} + {record['certify']:.2f}",
            f"{record['check']:.1f}",
        ]
        for record in found
    ]
    return markdown(header, lines)


if __name__ == "__main__":
    main()

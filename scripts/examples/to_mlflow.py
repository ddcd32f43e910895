"""Log a run of distsms to MLflow: the course of the training, the measures, the report, and the model, also as ONNX.

    distsms train credit.csv --label bad --trace trace.jsonl --output model.h5
    python -m scripts.examples.to_mlflow model.h5 --report report.html --experiment credit

MLflow says where to: MLFLOW_TRACKING_URI, or else its default. It is not a dependency of distsms (pip install mlflow).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import mlflow

import distsms
from distsms.cli.main import main as distsms_command

COURSE = ("best_J", "lower_bound", "gap", "nu")
"""What is logged of each evaluation. Of the trace, `J` jumps, and the first gaps may be missing."""
PARAMS = ("measure", "lambda", "l1", "status", "ranks", "command")


def log(path: Path, report: Path | None) -> str:
    """Log a model, and return the id of MLflow's run."""
    info = distsms.load_model(path).info
    with mlflow.start_run(run_name=path.stem) as run:
        mlflow.log_params({name: info[name] for name in PARAMS if name in info})
        mlflow.log_params({f"data_{name}": info["data"][name] for name in ("directory", "fingerprint", "n", "n_pos")})
        mlflow.set_tag("distsms", info["versions"]["distsms"])
        if info.get("trace") and Path(info["trace"]).is_file():
            for line in Path(info["trace"]).read_text().splitlines():
                state = json.loads(line)
                values = {name: state[name] for name in COURSE if state[name] is not None}
                mlflow.log_metrics(values, step=state["evaluation"])
        for rows in ("training", "test"):
            measures = info.get(rows) or {}
            mlflow.log_metrics({f"{rows}_{name}": value for name, value in measures.items() if value is not None})
        with tempfile.TemporaryDirectory() as folder:
            onnx = Path(folder, "model.onnx")
            if distsms_command(["export", str(path), "--to", "onnx", "--output", str(onnx)]) == 0:
                mlflow.log_artifact(str(onnx))
        for file in (path, report):
            if file is not None:
                mlflow.log_artifact(str(file))
    return str(run.info.run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model that `distsms train` has written")
    parser.add_argument("--report", type=Path, help="its report")
    parser.add_argument("--experiment", default="distsms", help="the experiment of MLflow (default: %(default)s)")
    args = parser.parse_args()
    mlflow.set_experiment(args.experiment)
    print(f"run {log(args.model, args.report)} of the experiment {args.experiment}")


if __name__ == "__main__":
    main()

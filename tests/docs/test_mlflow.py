"""The example of the manual that logs a run to MLflow: by MLflow itself where it is installed, else by one in its place
that remembers what it is told.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import pytest

from tests.support import program

pytest.importorskip("onnx")
pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.serial, pytest.mark.e2e]


class Remembering(types.ModuleType):
    """What the example calls of MLflow, and what it was told."""

    def __init__(self):
        super().__init__("mlflow")
        self.params, self.metrics, self.artifacts = {}, [], []
        self.log_params = self.params.update
        self.set_experiment = self.set_tag = lambda *words: None
        self.log_metrics = lambda values, step=0: self.metrics.extend((name, step, values[name]) for name in values)
        self.log_artifact = lambda path: self.artifacts.append(Path(path).name)
        self.info = types.SimpleNamespace(run_id="7")

    def start_run(self, run_name):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    words = ["--label", "bad", "--lambda", "0.01", "--solver", "lbfgs"]
    words += ["--trace", folder / "trace.jsonl", "--output", folder / "model.h5"]
    program.run("train", program.ROOT / "docs/start/credit.csv", *words)
    return folder


def expected(folder):
    """Return what MLflow has to know of the course of the training: (name, step, value) of each evaluation."""
    lines = map(json.loads, (folder / "trace.jsonl").read_text().splitlines())
    return {
        (name, line["evaluation"], line[name])
        for line in lines
        for name in ("best_J", "lower_bound", "gap", "nu")
        if line[name] is not None
    }


def example():
    sys.modules.pop("scripts.examples.to_mlflow", None)
    return importlib.import_module("scripts.examples.to_mlflow")


def test_the_example_logs_the_run(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", remembering := Remembering())
    assert example().log(trained / "model.h5", trained / "report.html") == "7"
    assert expected(trained) <= set(remembering.metrics)
    assert {"training_rocarea", "test_rocarea"} <= {name for name, _, _ in remembering.metrics}
    assert remembering.params["measure"] == "rocarea" and remembering.params["data_n_pos"] == 240
    assert remembering.artifacts == ["model.onnx", "model.h5", "report.html"]
    sys.modules.pop("scripts.examples.to_mlflow")


def test_mlflow_itself_takes_it(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones prefer a database, which needs more packages
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"file:{tmp_path}/runs")
    run = example().log(trained / "model.h5", trained / "report.html")
    client = mlflow.MlflowClient()
    course = {
        (name, metric.step, metric.value)
        for name in ("best_J", "lower_bound", "gap", "nu")
        for metric in client.get_metric_history(run, name)
    }
    assert course == expected(trained)
    assert {file.path for file in client.list_artifacts(run)} == {"model.onnx", "model.h5", "report.html"}
    assert client.get_run(run).data.params["measure"] == "rocarea"

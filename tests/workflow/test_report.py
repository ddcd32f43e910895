"""What a page on a model shows is of the rows of all ranks."""

from __future__ import annotations

import numpy as np
import pytest

import distsms
from distsms.base.errors import InputError
from distsms.models.evaluation import EvaluationOptions
from distsms.shards.from_arrays import write_data
from distsms.workflow.evaluate import contributions_of
from distsms.workflow.report import read_path, report_data
from distsms.workflow.requests import PredictRequest, ReportRequest
from tests.models.test_output import table, trained
from tests.support.files import on_root


def test_shares_of_the_columns_of_a_table_are_of_all_rows(comm, shared_dir):
    on_root(comm, lambda: table(shared_dir))
    one, path = trained(shared_dir, comm, "standard", id="id"), shared_dir / "a.csv"
    expected = contributions_of(PredictRequest(one, path), comm)
    options = EvaluationOptions(intervals=True, replicates=10)
    data = report_data(ReportRequest(one, path, options, output=shared_dir / "report.html"), comm)
    assert (data is not None) == comm.is_root
    if data is not None:
        assert data.contributions.n == expected.n
        np.testing.assert_allclose(data.contributions.kept, expected.kept, rtol=1e-9, atol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("measure", ["prbep", "pauc@0.2"])
def test_a_path_for_any_measure_is_shown_if_it_is_of_the_same_data(tmp_path, measure):
    X = np.random.default_rng(0).normal(size=(80, 3))
    data = write_data(tmp_path / "data", X, np.where(X[:, 0] > 0.5, 1, -1))
    distsms.path(data.directory, output=tmp_path / "path", measure=measure, lambdas=[0.1], folds=2, solver="lbfgs")
    shown = read_path(tmp_path / "path", data.fingerprint)
    assert (shown.problem["measure"], len(shown.points)) == (measure, 3)
    with pytest.raises(InputError, match="was made on other data"):
        read_path(tmp_path / "path", "another")

"""What a page on a model shows is of the rows of all ranks."""

from __future__ import annotations

import numpy as np

from distsms.models.evaluation import EvaluationOptions
from distsms.workflow.evaluate import contributions_of
from distsms.workflow.report import report_data
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

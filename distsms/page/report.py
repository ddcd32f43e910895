"""Write the page on a model that a user asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import atomic_write, naming_failures, real_path, require_space
from distsms.workflow.report import report_data
from distsms.workflow.requests import ReportRequest


@dataclass(frozen=True)
class Report:
    """A page that was written. All ranks have the same.

    Attributes
    ----------
    path : str
        The HTML file.
    size : int
        Its bytes.
    figures : list of str
        The files of its figures, if they were written, too.
    measures : dict
        The measures of the model on these rows, with their intervals, as `distsms evaluate --json` has them.
    warnings : list of str
        What users must know of these measures, such as that rows are training rows of the model.
    notes : list of str
        What the reader of a file or a table left out, or took for something else.
    """

    path: str
    size: int
    figures: list[str]
    measures: dict[str, Any]
    warnings: list[str]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return dict(vars(self))


def report(request: ReportRequest, comm: Communicator) -> Report:
    """Evaluate the model on all ranks, and write the page on the root. **Collective.**"""
    with comm.fail_together():
        if comm.is_root:
            try:
                from distsms.page import mpl  # noqa: F401
            except ImportError as error:
                needed = f"the figures of a report need matplotlib, which cannot be imported: {error}"
                raise InputError(f"{needed}. Install it with: pip install 'distsms[plot]'") from error
    data, written = report_data(request, comm), None
    with comm.fail_together():
        if data is not None:
            from distsms.page import sections

            text, drawings = sections.compose(data)
            page = text.encode("utf-8", "backslashreplace")  # file names need not be valid Unicode
            require_space(real_path(request.output).parent, len(page))
            with atomic_write(request.output) as file:
                file.write(page)
            figures = list[str]()
            if request.figures is not None:
                with naming_failures(request.figures):
                    for drawing in drawings:
                        figures += map(os.fspath, drawing.save(Path(request.figures)))
            measures, warnings = data.evaluation.as_json(data.rows, data.level), list(data.warnings)
            written = Report(os.fspath(request.output), len(page), figures, measures, warnings, list(data.notes))
    return comm.bcast(written)

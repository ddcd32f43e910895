"""The directive `results`: tables of the results of a program in scripts/, made from the JSON file that it wrote.

    ```{results} attack-101
    :show: solver
    python -m scripts.experiments.attack --problems 10000 --seed 101 --json docs/results/data/attack-101.json
    ```

reads docs/results/data/attack-101.json, and inserts the table that the program prints and a line about its origin:
date, commit, machine. The table is folded: readers open what they want to look up. The content of the directive is
the command that writes the file again, which may be left out of all but one of those of a file. If the file is
missing, the page says so and shows the command. `show` selects one of several tables of a program, the picture with
which a page begins, or a figure; of several figures it names one, as in `figure web8 prbep`. So no number is typed by
hand. The name `history` stands for all files of versions, history-VERSION.json.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from distsms.page import html
from scripts import page_pictures, records
from scripts.benchmarks import history, pictures, scaling
from scripts.benchmarks import run as benchmarks
from scripts.experiments import all as all_experiments
from scripts.experiments import (
    coverage,
    criteo,
    decisions,
    feature_samples,
    features,
    from_text,
    gaps,
    head,
    head_coverage,
    lambdas,
    lower_bounds,
    paper,
    rival,
    small_beta,
    strings,
    table2,
    tables,
    thesis,
    trainings,
)
from scripts.experiments.attacks import report
from tests.robustness.chaos import table as chaos

RULE = re.compile(r"^\|[ :|-]+\|$", re.M)
"""The line between the header and the rows of a table."""


class Results(SphinxDirective):
    """The directive; its argument is the name of the file without .json."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"show": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        paths, show = files_of(self.arguments[0]), self.options.get("show", "")
        for path in paths:
            self.env.note_dependency(str(path))
        command = "\n".join(["```console", *(f"$ {line}" for line in self.content), "```"])
        if self.arguments[0] == "history" and paths:
            return self._history([records.read(path) for path in paths], show, command)
        found = records.read(paths[0]) if paths and paths[0].exists() else None
        if found is None or not has(found, show):
            measured = f"This command measures them:\n\n{command}" if self.content else ""
            return self.parse_text_to_nodes(f":::{{note}}\nThere are no results for this yet. {measured}\n:::")
        if show == "picture":
            return [in_page(page_pictures.PICTURES[self.arguments[0]](found["records"]), self.arguments[0])]
        if show.startswith("figure"):
            return [in_page(figure(found, show), f"{self.arguments[0]}-{show.replace(' ', '-')}")]
        return self._folded(table(found, show), f"{provenance(found)}\n\n{command}")

    def _folded(self, table: str, below: str) -> list[nodes.Node]:
        """Return a table, and what belongs to it, as something that the reader opens."""
        rows = sum(line.startswith("|") for line in table.split("\n")) - 2 * len(RULE.findall(table))
        opening = f'<details class="results"><summary>The table ({rows} row{"s" * (rows != 1)})</summary>'
        inside = self.parse_text_to_nodes(f"{table}\n\n{below}")
        return [nodes.raw("", opening, format="html"), *inside, nodes.raw("", "</details>", format="html")]

    def _history(self, files: list[dict[str, Any]], show: str, command: str) -> list[nodes.Node]:
        if show == "figure":
            return [in_page(pictures.over_versions(files), "history")]
        origins = "\n".join(
            " ".join([f"- {file['version']}: {provenance(file)}", *disturbed(file, "history")])
            for file in history.in_order(files)
        )
        return self._folded(history.table(files), f"{origins}\n\n{command}")


def files_of(name: str) -> list[Path]:
    """Return the files that a name stands for: one, which may be missing, or those of all versions."""
    return (
        sorted(records.PUBLISHED.glob("history-*.json")) if name == "history" else [records.PUBLISHED / f"{name}.json"]
    )


def in_page(svg: str, name: str) -> nodes.raw:
    """Return a picture as a node of the page, in colours that follow its theme; what it shows is said beside it."""
    return nodes.raw("", html.figure(svg, name, "", "What the picture shows is said below it."), format="html")


def has(found: dict[str, Any], show: str) -> bool:
    """Return whether a file has the part of the program that `show` selects; it may have run without that part."""
    if found["program"] == "scripts.experiments.table2":
        return table2.has(found["records"], show)
    parts = {row["part"] for row in found["records"] if "part" in row}
    return not parts or show in {*parts, "figure", "picture"}


def table(found: dict[str, Any], show: str) -> str:
    """Make the table of a file in Markdown.

    Parameters
    ----------
    found : what `records.read` returns.
    show : which table, of programs that have several; empty for others.
    """
    program, rows = found["program"], found["records"]
    if program == "scripts.experiments.attack":
        return report.summary(rows) if show == "summary" else report.table(rows, show)
    if program == "scripts.experiments.coverage":
        return coverage.table([row for row in rows if row["part"] == show])
    if program == "scripts.experiments.head_coverage":
        return head_coverage.table(rows, show)
    if program == "scripts.experiments.features":
        return features.table(rows, show)
    if program == "scripts.experiments.tables":
        return tables.table_of(rows, show)
    if program == "scripts.benchmarks.run":
        part = [row for row in rows if row["part"] == show]
        return "\n\n".join([benchmarks.table(part), *disturbed(found, show)])
    if program == "scripts.experiments.table2":
        return table2.table(rows, show)
    if program == "scripts.experiments.gaps":
        return gaps.table_of_rules(rows) if show == "rules" else gaps.table(rows)
    if program == "tests.robustness.chaos":
        return chaos.table(rows)
    if program == "scripts.experiments.paper":
        return str(paper.OTHERS[found["arguments"][0]].table(rows))
    known = (
        trainings,
        lambdas,
        lower_bounds,
        strings,
        head,
        small_beta,
        decisions,
        thesis,
        criteo,
        from_text,
        rival,
        all_experiments,
        feature_samples,
        scaling,
    )
    modules = {module.__name__: module for module in known}
    return str(modules[program].table(rows))


def disturbed(found: dict[str, Any], part: str) -> list[str]:
    """Return the warnings that something else used the machine while a part of the benchmarks ran."""
    return [warning for warning in found["warnings"] if re.search(rf"during {part}\b", warning)]


def figure(found: dict[str, Any], show: str = "figure") -> str:
    """Draw a figure of a file as SVG."""
    if found["program"] == "scripts.experiments.table2":
        return table2.figure(found["records"], show)
    if found["program"] == "scripts.benchmarks.run":
        return pictures.roofline(found)
    with tempfile.TemporaryDirectory() as folder:
        files = lower_bounds.figure(found["records"], Path(folder))
        svg = next(path for path in files if path.suffix == ".svg").read_text(encoding="utf-8")
    return svg


def provenance(found: dict[str, Any]) -> str:
    """Say in a sentence where the results come from."""
    machine, commit = found["machine"], found["commit"]
    dirty = " with uncommitted changes" if found["dirty"] else ""
    at = f"commit {commit[:10]}" if commit else f"distsms {found['versions']['distsms']}, commit not recorded"
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB"
    load = f"; load average {machine['load'][0]:.1f} at the end" if "load" in machine else ""
    note = f" {found['note']}" if "note" in found else ""
    return f"*Measured on {found['date'][:10]} with {at}{dirty} on {where}{load}.*{note}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive with Sphinx."""
    app.add_directive("results", Results)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

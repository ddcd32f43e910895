"""The nodes and constants of an ONNX graph. The modules on ONNX take that library from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from distsms.base.errors import InputError

try:
    from onnx import TensorProto, checker, helper, numpy_helper
except ImportError as absent:
    raise InputError(f"ONNX files need the package onnx: pip install 'distsms[export]' ({absent})") from absent

__all__ = ["IR_VERSION", "ML", "ML_OPSET", "OPSET", "Graph", "TensorProto", "checker", "helper"]

ML = "ai.onnx.ml"
OPSET, ML_OPSET, IR_VERSION = 16, 2, 8  # from early 2022: every runtime since then knows them


class Graph:
    """The nodes and constants of a graph. Their names differ from those of all columns."""

    def __init__(self, taken: Sequence[str]) -> None:
        self.nodes, self.constants = list[Any](), list[Any]()
        self._prefix = "distsms"
        while any(name.startswith(self._prefix) for name in taken):
            self._prefix += "."

    def add(self, kind: str, *inputs: str, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        output = output or f"{self._prefix} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], domain=domain, **attributes))
        return output

    def constant(self, value: ArrayLike) -> str:
        """Return the name of a constant."""
        name = f"{self._prefix} constant {len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

"""Names of the arrays that tables are read into; for type checkers."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

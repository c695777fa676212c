"""The package greenlet, in which simulated clients run: an extra of limpet, which may be missing.

All modules that simulate clients import it from here, so without it an error names the package to
install.
"""

from __future__ import annotations

try:
    from greenlet import getcurrent, greenlet
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "simulated clients need the package greenlet: pip install 'limpet[simulate]'",
        name=error.name,
    ) from None

__all__ = ["getcurrent", "greenlet"]

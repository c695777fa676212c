"""`AckKey`: tells whether operations on channels are complete (LOCO 5.2).

The paper's key is a set of bits, one for each verb on its way, which a polling thread clears. Here
all verbs of a process that are on their way make up a phase, and become complete together (the
manager counts phases): a key is the set of the phases of its verbs.
"""

from __future__ import annotations

from typing import Any


class AckKey:
    """The completion of one or more operations on channels."""

    def __init__(self, manager: Any, phases: set[int]) -> None:
        self.manager = manager
        self.phases = phases

    def query(self) -> bool:
        """Whether all of them are complete, without waiting."""
        return all(phase <= self.manager.completed for phase in self.phases)

    def wait(self) -> None:
        """Wait until they are: at most one round trip."""
        if self.phases:
            self.manager.wait_for(max(self.phases))

    def union(self, *others: AckKey) -> AckKey:
        """One key for these operations and those of `others`."""
        return AckKey(self.manager, self.phases.union(*(other.phases for other in others)))

    __or__ = union

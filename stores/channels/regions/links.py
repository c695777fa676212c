"""Links of regions: words that are 0 or a reference to an object, which goes with the region.

A link is freed as every object is: in the client's journal first, then unlinked by a CAS to 0, then
free. Several clients may free the same link; the CAS of one of them wins.
"""

from __future__ import annotations

from typing import Any

from limpet.stores.channels.phases import cas_alone, load_alone


def unlink(client: Any, link: int) -> None:
    """Free the object that the link at this address names, if there is one. In an operation; 1
    round trip if there is none."""
    reference = load_alone(client.endpoint, link)
    if reference:
        unlink_from(client, link, reference)


def unlink_from(client: Any, link: int, reference: int) -> None:
    """Free the object that a link named when it was read, unless another client does. In an
    operation; 1 round trip."""
    index = client.log(reference, link)
    # CRASH(unlinking): linked, or not and in the journal; then recovery frees the object.
    if cas_alone(client.endpoint, link, reference, 0) == reference:
        client.release(index)
    else:
        client.drop(index)

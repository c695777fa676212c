"""Names of stores and channels."""

from typing import Final

NAME_SIZE_MAX: Final = 100


def is_name(name: object, without: str = "") -> bool:
    """Whether that is text of 1 to NAME_SIZE_MAX bytes of UTF-8, without these characters."""
    if not isinstance(name, str) or not name or set(name) & set(without):
        return False
    try:
        return len(name.encode()) <= NAME_SIZE_MAX
    except UnicodeEncodeError:
        return False

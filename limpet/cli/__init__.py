"""The commands of `limpet`; the group itself is limpet/__main__.py."""

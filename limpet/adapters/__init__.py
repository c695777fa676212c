"""limpet behind the interfaces of other packages, each an extra: `pip install 'limpet[django]'`."""

"""The common part of all kinds of stores: operations and their loop, records, regions, names."""

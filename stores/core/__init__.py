"""What all kinds of stores share: operations and their one loop, records, regions, names."""

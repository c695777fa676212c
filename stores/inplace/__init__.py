"""B-link trees whose nodes are changed in place: the baselines of rTX section 6."""

"""B-link trees whose nodes are changed in place: the baselines of rtx.txt section 6."""

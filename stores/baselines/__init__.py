"""The baselines of the papers: Clover, pDPM-Direct, DTX and RAW."""

"""What the papers compare themselves with: Clover, pDPM-Direct, DTX and RAW."""

"""Client slots: liveness, leases, fencing, epochs, and the recovery of clients that died."""

"""Proofs that no data is lost when clients are killed, stopped or slow.

inject     stopping, cutting, killing: the own client at a step, and processes at any moment
check      histories, and the judges of them
matrix     every operation killed at every step
explore    the simulator, and schedules of many clients in one process
drill      real processes, and the reports
"""

"""What shows that nothing is lost, whoever is killed, stopped or slow.

inject     stopping, cutting, killing: clients of one's own at a step, and processes at any moment
check      histories, and the judges of them
matrix     every operation killed at every step
explore    the simulator, and schedules of many clients in one process
drill      real processes, and the reports
"""

"""Where memory comes from: POSIX shared memory, files and DAX devices; pools and nodes by name."""

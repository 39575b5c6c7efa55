"""Many jobs on many machines: each in a process and a folder of its own, run by any executor."""

"""The rooms of the workload stage: kvplan/workload.py is their door, kvplan/reuse.py the kernel they all stand on."""

"""Training on many GPUs, planned: memory, messages and time of a step, without running one."""

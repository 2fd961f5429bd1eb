"""CPU kernels compiled by numba, one file per operation, independent of autograd and modules."""

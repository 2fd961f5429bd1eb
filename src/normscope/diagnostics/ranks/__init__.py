"""Compare the ranks of torch.distributed: `checksums` → `observer` → `exchange` → `compare`, without collectives."""

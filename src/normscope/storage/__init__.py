"""Safe file access: atomic writes, checksums, JSON with schemas and limits, folders without symbolic links."""

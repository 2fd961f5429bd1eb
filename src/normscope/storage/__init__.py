"""Files and folders: atomic writes, folders that refuse symbolic links, JSON with limits."""

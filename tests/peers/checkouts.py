"""Run the code of another repository as it was at a commit, beside ours.

A commit of a git repository (a checkout or a bare one) is unpacked into a temporary folder, which comes first on
sys.path; afterwards its modules are forgotten.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def checked_out(repository: Path, commit: str) -> Iterator[Path]:
    """Unpack a commit, and make its modules importable meanwhile."""
    done = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{repository} has no commit {commit}: {done.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(temporary, filter="data")
        before = set(sys.modules)
        sys.path.insert(0, temporary)
        try:
            yield Path(temporary)
        finally:
            sys.path.remove(temporary)
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", None) or "").startswith(temporary):
                    del sys.modules[name]

"""The x-rays that the server keeps for the page."""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from normscope.errors import ConfigError
from normscope.inspection.xray import XrayResult
from normscope.storage.json_files import MIB

MAX_RECORDS = 16
"""Records that are kept; older ones are dropped."""
MAX_UPLOADED = 64 * MIB
"""Bytes of the uploaded files of the records that are kept, together."""


@dataclass(frozen=True)
class KeptRecord:
    """An x-ray on the page.

    Args:
        label: What it is of.
        result: The x-ray and its findings.
        uploaded: Size of the uploaded file in bytes; 0 for an x-ray that was taken here.
    """

    label: str
    result: XrayResult
    uploaded: int = 0


class XrayRecords:
    """The x-rays that were taken or uploaded, by an unguessable key."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, KeptRecord] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, record: KeptRecord) -> str:
        """Keep a record, and return its key."""
        key = secrets.token_hex(8)
        with self._lock:
            self._records[key] = record
            while len(self._records) > 1 and self._is_full():
                self._records.popitem(last=False)
        return key

    def _is_full(self) -> bool:
        uploaded = sum(record.uploaded for record in self._records.values())
        return len(self._records) > MAX_RECORDS or uploaded > MAX_UPLOADED

    def get(self, key: str) -> KeptRecord:
        with self._lock:
            record = self._records.get(key)
        if record is None:
            raise ConfigError("this x-ray is no longer in memory\nfix: take it again")
        return record

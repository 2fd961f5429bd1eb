"""An exported HTML page: its own code, run in Node.js without a browser."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normscope.comparing.runtime import FloatArray
from normscope.comparing.runtimes import RuntimeMissingError, RuntimeRefusalError

_DRIVER = Path(__file__).with_name("page_driver.mjs")


class PageRuntime:
    """A page in Node.js."""

    precision = "float32"
    has_tokenizer = True

    def __init__(self, path: Path) -> None:
        node = shutil.which("node")
        if node is None:
            raise RuntimeMissingError("Node.js is not installed\nfix: install Node.js 20 or newer")
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        self.name = f"Node.js {version}"
        self._process = subprocess.Popen(
            [node, str(_DRIVER), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        if self._output.readline().strip() != "ready":
            _, errors = self._process.communicate()
            raise RuntimeRefusalError(f"Node.js cannot run it: {errors[-400:]}")

        try:
            facts = self._call("facts")
        except RuntimeRefusalError:
            self.close()
            raise RuntimeMissingError("the page was built by an earlier version\nfix: make page") from None
        self.context, self.vocab_size = int(facts["context"]), int(facts["vocab_size"])
        self.eos_token_id: int | None = facts["eos_token_id"]

    def close(self) -> None:
        self._process.communicate()

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        return np.array(self._call("positionLogits", list(tokens)), np.float32)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        found: list[int] = self._call("greedy", list(tokens), count)
        return found

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._call("encode", text)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._call("decode", list(tokens)))

    def layers(self, tokens: Sequence[int]) -> Mapping[str, FloatArray]:
        return {}

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            self._input.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
            self._input.flush()
            answer = json.loads(self._output.readline())
        except (OSError, ValueError) as error:
            raise RuntimeRefusalError(f"Node.js does not answer: {error}") from error
        if "error" in answer:
            raise RuntimeRefusalError(f"{method}: {answer['error']}")
        return answer["result"]

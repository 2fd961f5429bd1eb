"""A GGUF file in llama.cpp, through the server of the package xllamacpp."""

import http.client
import importlib.metadata
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from normscope.comparing.runtime import FloatArray
from normscope.comparing.runtimes import RuntimeMissingError, RuntimeRefusalError

_ANSWER_SECONDS = 600


class LlamaCppRuntime:
    """A GGUF file in llama.cpp. Its logits are log-probabilities: they differ from logits by a constant per position.

    Args:
        path: the file.
        context: longest sequence.
        vocab_size: number of tokens.
        precision: format of the weights, such as "q8_0".
        stop_token_id: a token without text, such as the end-of-text token.
    """

    has_tokenizer = True

    def __init__(self, path: Path, *, context: int, vocab_size: int, precision: str, stop_token_id: int) -> None:
        try:
            version = importlib.metadata.version("xllamacpp")
        except importlib.metadata.PackageNotFoundError:
            raise RuntimeMissingError("llama.cpp is not installed\nfix: pip install 'normscope[export]'") from None
        self.name, self.vocab_size = f"llama.cpp (xllamacpp {version})", vocab_size
        self.context = context - 1  # its server refuses a prompt that leaves no place for a token
        self.precision, self._stop_token_id = precision, stop_token_id
        self._key = secrets.token_hex(16)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        command = [sys.executable, "-P", str(Path(__file__).with_name("llama_cpp_server.py"))]
        self._process = subprocess.Popen(
            [*command, str(path), str(context), self._key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        if not address:
            self.close()
            raise RuntimeRefusalError(f"llama.cpp cannot load it: {self._reason}")
        self._address = urlsplit(address).netloc
        self.eos_token_id = self._end_of_text()
        self._adds_space = self._pieces(self.encode("a")) == " a"

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.seek(0)
        errors = self._errors.read().splitlines()
        lines = [line.partition(" E ")[2] for line in errors if " E " in line] or errors[-3:]
        self._reason = lines[0] if lines else f"it ended with {self._process.returncode}"
        self._errors.close()

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        return np.stack([self._log_probabilities(tokens[: i + 1]) for i in range(len(tokens))])

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        found: list[int] = []
        for _ in range(count):  # each request continues its KV cache
            found.append(int(self._log_probabilities([*tokens, *found]).argmax()))
        return found

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._post("/tokenize", content=text, add_special=False, parse_special=False)["tokens"]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        text = self._pieces(tokens)
        # llama.cpp's detokenizer drops the space that its tokenizer puts before a text; the server joins pieces.
        return text.removeprefix(" ") if self._adds_space else text

    def layers(self, tokens: Sequence[int]) -> Mapping[str, FloatArray]:
        return {}

    def _pieces(self, tokens: Sequence[int]) -> str:
        return str(self._post("/detokenize", tokens=list(tokens))["content"])

    def _log_probabilities(self, tokens: Sequence[int]) -> FloatArray:
        """The log-probabilities of the next token, before any sampling."""
        answer = self._post(
            "/completion",
            prompt=list(tokens),
            n_predict=1,
            n_probs=self.vocab_size,
            cache_prompt=True,
            # The probabilities are those before the bias. The sampled token must not be a part of a character, or the
            # server waits for the rest and reports nothing.
            logit_bias=[[self._stop_token_id, 1e9]],
            temperature=0,
        )
        found = np.full(self.vocab_size, np.nan, np.float32)
        for one in answer["completion_probabilities"][0]["top_logprobs"]:
            found[one["id"]] = one["logprob"]
        return found

    def _end_of_text(self) -> int | None:
        """The token that it stops at: its properties have only its name."""
        name = self._request("GET", "/props", {})["eos_token"]
        if not name:
            return None
        found = self._post("/tokenize", content=name, add_special=False, parse_special=True)["tokens"]
        return found[0] if len(found) == 1 else None

    def _post(self, path: str, **content: Any) -> Any:
        return self._request("POST", path, content)

    def _request(self, method: str, path: str, content: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        # A connection for each request: on a kept one the server waits 40 ms for an acknowledgement, each time.
        connection = http.client.HTTPConnection(self._address, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, path, json.dumps(content), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RuntimeRefusalError(f"llama.cpp does not answer: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeRefusalError(f"llama.cpp cannot answer {path}: {answer['error']['message']}")
        return answer

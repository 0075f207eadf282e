# SPDX-License-Identifier: Apache-2.0
"""A real `vllm serve` process for tests."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from vllm.utils.network_utils import get_open_port

START_TIMEOUT_S = 120
KEY = "test-key"


class RemoteServer:
    """`vllm serve MODEL` on a free port, as a context manager.

    Attributes:
        process: the server's; its only child is the engine's.
    """

    def __init__(self, model: Path, log: Path, *options: str) -> None:
        self.port = get_open_port()
        self.log = log
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += [f"--port={self.port}", f"--api-key={KEY}", "--served-model-name", "tiny"]
        command += ["--max-model-len=512", "--kv-cache-memory-bytes=8388608", *options]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    def __enter__(self) -> "RemoteServer":
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            if self.health() == 200:
                return self
            time.sleep(0.1)
        self.process.kill()
        raise AssertionError(f"the server did not come up: {self.log.read_text()}")

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine_process(self) -> psutil.Process:
        """The engine core's process."""
        found = [
            p
            for p in psutil.Process(self.process.pid).children(recursive=True)
            if any("core_proc" in part for part in p.cmdline())
        ]
        assert len(found) == 1, found
        return found[0]

    def health(self) -> int | None:
        """Status of /health; None while nothing listens."""
        try:
            return httpx.get(self.url + "/health", timeout=10).status_code
        except httpx.TransportError:
            return None

    def client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's client."""
        return openai.OpenAI(base_url=self.url + "/v1", api_key=KEY, max_retries=0, **options)

    def http(self) -> httpx.Client:
        """A plain client with the key."""
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def metric(self, name: str) -> float:
        """Value of an unlabelled `vllm:` metric."""
        with self.http() as client:
            text = client.get("/metrics").text
        lines = [x for x in text.splitlines() if x.startswith(f"vllm:{name}{{")]
        assert len(lines) == 1, (name, lines)
        return float(lines[0].rpartition(" ")[2])

# SPDX-License-Identifier: Apache-2.0
"""`vllm serve --tensor-parallel-size 2`, through the OpenAI client."""

from pathlib import Path

import psutil
import pytest

from tests.conftest import TinyModel
from tests.entrypoints.openai.remote_server import RemoteServer
from tests.utils import hf_logprobs, random_token_ids
from tests.v1.executor.utils import TOLERANCE


def ranks_of(server: RemoteServer) -> list[psutil.Process]:
    """The ranks' processes, children of the engine core's."""
    return [
        child
        for child in server.engine_process.children()
        if any("worker_main" in part for part in child.cmdline())
    ]


def test_a_server_on_two_ranks(tiny_model: TinyModel, tmp_path: Path) -> None:
    path, prompt = tiny_model("qwen3"), random_token_ids(30, seed=5)
    options = ("--tensor-parallel-size=2", "--dtype=float32")
    with RemoteServer(path, tmp_path / "log", *options) as server:
        ranks = ranks_of(server)
        assert len(ranks) == 2
        answer = server.client().completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=5,
            temperature=0,
            logprobs=1,
            extra_body={"ignore_eos": True},
        )
        assert answer.usage is not None and answer.usage.completion_tokens == 5
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None
        # The next token's best logprob needs no text: the first is the prompt's own.
        best = float(hf_logprobs(path, prompt)[-1].max())
        assert logprobs.token_logprobs[0] == pytest.approx(best, abs=TOLERANCE)
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive, "ranks outlive the server"

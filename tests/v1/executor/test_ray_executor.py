# SPDX-License-Identifier: Apache-2.0
"""Two ranks on a local Ray cluster, in a process of their own, as Ray leaves threads behind."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TinyModel
from tests.utils import hf_logprobs, random_token_ids
from vllm.exceptions import ConfigError
from vllm.v1.executor import ray_utils

SCRIPT = """
import json, sys
import ray
from vllm import LLM, SamplingParams
from vllm.exceptions import EngineDeadError
ray.init(num_cpus=2, include_dashboard=False)
llm = LLM(sys.argv[1], tensor_parallel_size=2, distributed_executor_backend="ray",
          dtype="float32", max_model_len=128, kv_cache_memory_bytes=2**21)
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
outputs = llm.generate([{"prompt_token_ids": json.loads(sys.argv[2])}], params, use_tqdm=False)
executor = llm.llm_engine.model_executor
executor.check_health()
ray.kill(executor.workers[1])
try:
    executor.collective_rpc("check_health")
    death = ""
except EngineDeadError as error:
    death = str(error)
print(json.dumps([list(outputs[0].outputs[0].token_ids), death]))
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the package ray")
def test_two_ranks_on_a_local_cluster(tiny_model: TinyModel, tmp_path: Path) -> None:
    path, prompt = tiny_model("llama"), random_token_ids(20, seed=3)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, str(script), str(path), json.dumps(prompt)],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
    line = next(x for x in reversed(result.stdout.splitlines()) if x.startswith("[["))
    token_ids, death = json.loads(line)
    best = hf_logprobs(path, prompt + token_ids)[len(prompt) - 1 : -1].argmax(-1)
    assert token_ids == best.tolist()
    assert death.startswith("rank 1 ended unexpectedly")


def test_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="pip install ray"):
        ray_utils.import_ray()

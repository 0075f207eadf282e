# SPDX-License-Identifier: Apache-2.0
"""Generate from a few prompts in this process: python examples/offline_inference.py [MODEL]"""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else None)
prompts = ["The capital of France is", "A haiku about rain:", "def fibonacci(n):"]
for output in llm.generate(prompts, SamplingParams(temperature=0.7, seed=1, max_tokens=40)):
    print(f"{output.prompt!r} -> {output.outputs[0].text!r}")

# SPDX-License-Identifier: Apache-2.0
"""Output that matches a JSON schema: python examples/structured_outputs.py [MODEL]"""

import sys

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else None)
params = SamplingParams(
    temperature=0, max_tokens=60, structured_outputs=StructuredOutputsParams(json=SCHEMA)
)
messages = [{"role": "user", "content": "Invent a person. Answer in JSON."}]
print(llm.chat(messages, params)[0].outputs[0].text)

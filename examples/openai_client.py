# SPDX-License-Identifier: Apache-2.0
"""Talk to a running server (`make serve`): python examples/openai_client.py"""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Tell me a very short story."}],
    max_tokens=120,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

# SPDX-License-Identifier: Apache-2.0
"""Talk to a running server (`make serve`): python examples/openai_client.py [URL]

URL ends with /v1; without it the variable OPENAI_BASE_URL is taken, then the server's default.
"""

import os
import sys

from openai import OpenAI

DEFAULT_URL = "http://127.0.0.1:8000/v1"

url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("OPENAI_BASE_URL", DEFAULT_URL)
client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "unused"))
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

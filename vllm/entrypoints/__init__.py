# SPDX-License-Identifier: Apache-2.0
"""What people call: `llm` from Python, `cli` from a shell, `openai` and `serve` over HTTP."""

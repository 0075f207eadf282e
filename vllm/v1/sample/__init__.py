# SPDX-License-Identifier: Apache-2.0
"""Logits in, token ids out: masks, penalties, the draw and logprobs. Knows nothing of text."""

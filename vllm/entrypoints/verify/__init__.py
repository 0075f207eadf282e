# SPDX-License-Identifier: Apache-2.0
"""Proof by comparison: a model's logprobs from this engine against those from Transformers."""

# SPDX-License-Identifier: Apache-2.0
"""Every causal-LM type of the installed Transformers, tiny and random, through the engine.

`python -m tests.models.transformers.sweep` prints a table and writes docs/models/transformers.md.
"""

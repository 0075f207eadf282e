# SPDX-License-Identifier: Apache-2.0
"""From what a user names to files, configurations and tokenizers of Transformers' kinds."""

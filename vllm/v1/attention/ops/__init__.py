# SPDX-License-Identifier: Apache-2.0
"""Attention ops: definitions and the kernels held to them."""

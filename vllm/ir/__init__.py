# SPDX-License-Identifier: Apache-2.0
"""Ops: one PyTorch definition each, and the kernels that are registered against it."""

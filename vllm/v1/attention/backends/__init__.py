# SPDX-License-Identifier: Apache-2.0
"""Attention backends, one file each."""

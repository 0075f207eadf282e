# SPDX-License-Identifier: Apache-2.0
"""Attention: backends, their selection, and ops over the paged cache."""

# SPDX-License-Identifier: Apache-2.0
"""The version: the upstream interface level that is followed, plus a local suffix."""

__version__ = "0.32.0+scratch.1"

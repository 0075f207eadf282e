# SPDX-License-Identifier: Apache-2.0
"""Models, their layers, and how their weights are loaded. Knows no scheduler and no text."""

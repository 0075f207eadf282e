# SPDX-License-Identifier: Apache-2.0
"""The worker: rows, block tables, steps and cache memory of one rank."""

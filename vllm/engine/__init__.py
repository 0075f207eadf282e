# SPDX-License-Identifier: Apache-2.0
"""What a user types about an engine, and how it becomes a resolved configuration."""

# SPDX-License-Identifier: Apache-2.0
"""What turns pieces of a Transformers model into engine layers, one kind a file."""

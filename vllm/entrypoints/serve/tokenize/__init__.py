# SPDX-License-Identifier: Apache-2.0
"""/tokenize and /detokenize."""

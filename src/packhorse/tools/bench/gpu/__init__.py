"""``packhorse bench gpu``: what the GPU reaches by itself, and what of it is left end to end.

ready      seconds from the start of a process to its first answer
memory     what the engine takes of the GPU
thousand   the guide's 1000 texts, end to end
steady     20,000 distinct reviews: GPU alone, end to end, and the matrix product's peak
lengths    tokens a second at 512 and at 50 tokens a text
latency    one text of 34 tokens
precision  logits against float32, beside Transformers in the same type
padding    the share of tokens that fill up the buckets of captured graphs
replicas   several engines side by side, for small batches
"""

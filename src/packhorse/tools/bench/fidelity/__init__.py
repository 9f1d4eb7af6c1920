"""``packhorse bench fidelity``: our logits beside Transformers', by family, problem and type.

float32   at most 1e-5 of the largest logit away from Transformers in float32
half      no further from those than Transformers in the same type is: RMS 1.1x, largest 1.5x

Faults are planted too, and each must make the check fail.
"""

"""Label texts, each on the command line or, without any, two of ours.

python examples/classify_texts.py "I love it." "Never again."
"""

import sys

from packhorse import Encoder

texts = sys.argv[1:] or ["This product is amazing and I love it!", "Terrible service."]

with Encoder() as encoder:  # the embedded demo model; or a folder, or a name on the hub
    for text, labels in zip(texts, encoder.classify(texts, top_k=1), strict=True):
        print(f"{labels[0].label:<10}{labels[0].score:.3f}  {text}")

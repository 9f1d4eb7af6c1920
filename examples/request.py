"""Ask a server, with nothing but the standard library, and again when it is busy.

packhorse serve
python examples/request.py http://localhost:8000
"""

import json
import sys
import time
import urllib.error
import urllib.request


def predict(url: str, texts: list[str], attempts: int = 5) -> list[list[dict[str, object]]]:
    """Labels with scores for each text; waits as long as the server asks for."""
    body = json.dumps({"inputs": [[text] for text in texts]}).encode()
    request = urllib.request.Request(f"{url}/predict", body, {"content-type": "application/json"})
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                again = error.code in (429, 503) and attempt < attempts - 1
                if not again:
                    raise RuntimeError(json.load(error)["error"]) from None
                time.sleep(float(error.headers["retry-after"]))
    raise AssertionError


if __name__ == "__main__":
    for labels in predict(sys.argv[1], ["This product is amazing!", "Terrible service."]):
        print(labels[0]["label"])

"""How long a batch will take, learned from the batches that ran."""

from __future__ import annotations

SMOOTHING = 0.1
"""How much one more fit changes ``fixed``."""


class CostModel:
    """seconds ≈ fixed + per_token * tokens, fitted online.

    Recursive least squares with forgetting (Haykin, Adaptive Filter Theory,
    ch. 10) in two unknowns: old batches fade, so a throttled or shared machine
    is noticed within some tens of batches.

    fixed
        seconds that a batch of any size takes, averaged over the last tens of fits: while batches
        are of much the same size a single fit says little about it
    """

    def __init__(self, forgetting: float = 0.97) -> None:
        self.fixed = 0.0
        self._forgetting = forgetting
        self._weight = self._t = self._s = self._tt = self._ts = 0.0
        self._varied = True  # whether batches differ enough in size to tell fixed from growing cost
        self._line = (0.0, 0.0)  # fixed, per_token; through the origin where there is no fit

    def observe(self, num_tokens: int, seconds: float) -> None:
        """One batch of ``num_tokens`` took ``seconds``."""
        keep = self._forgetting
        self._weight = keep * self._weight + 1
        self._t = keep * self._t + num_tokens
        self._s = keep * self._s + seconds
        self._tt = keep * self._tt + num_tokens * num_tokens
        self._ts = keep * self._ts + num_tokens * seconds
        self._fit()

    def predict(self, num_tokens: int) -> float:
        """Seconds for a batch of ``num_tokens``; 0 before the first observation."""
        fixed, per_token = self._line
        return fixed + per_token * num_tokens

    def tokens_within(self, seconds: float, most: int) -> int:
        """The largest batch predicted to stay within ``seconds``, from 1 to ``most`` tokens.

        While all batches had about one size, nobody knows what of their time
        was fixed: then it is at least half as much again as that size, so that
        small batches can grow until the line is known.
        """
        fixed, per_token = self._line
        if per_token <= 0:
            return most
        tokens = (seconds - fixed) / per_token
        if not self._varied:
            tokens = max(tokens, 1.5 * self._t / self._weight + 16)
        return int(max(1, min(most, tokens)))

    def _fit(self) -> None:
        mean_t, mean_s = self._t / self._weight, self._s / self._weight
        variance = self._tt / self._weight - mean_t * mean_t
        self._varied = variance > 1e-2 * mean_t * mean_t
        if self._varied:
            per_token = (self._ts / self._weight - mean_t * mean_s) / variance
            fixed = mean_s - per_token * mean_t
            if per_token > 0 and fixed >= 0:
                self._line = fixed, per_token
                self.fixed += (fixed - self.fixed) * (SMOOTHING if self.fixed else 1.0)
                return
        self._line = 0.0, mean_s / mean_t

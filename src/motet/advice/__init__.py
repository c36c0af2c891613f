"""Should these parties federate? What is known before training, and what a short probe predicts for each of them."""

from motet.advice.advise import Advice, advise

__all__ = ["Advice", "advise"]

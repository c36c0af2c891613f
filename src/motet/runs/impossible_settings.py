"""Settings of guards, of privacy and of texts that are right one by one and wrong together.

Knows sections of recipes. Does not know data, networks or methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from motet.guard.accounting import LEAST_NOISE
from motet.runs.sections import GuardSettings, PrivacySettings


def impossible_guard(guard: GuardSettings) -> list[str]:
    wrong = []
    if guard.masked and guard.mean != "mean":
        wrong.append(
            f"guard.masked is true and guard.mean is {guard.mean}; they exclude each other: a robust mean "
            "needs every single reply, and a masked sum hides them\nhint: guard.masked=false or guard.mean=mean"
        )
    if guard.masked and guard.compresses:
        wrong.append(
            "guard.masked is true, and so replies cannot be compressed (guard.bits, guard.top): a mask takes as many "
            "bytes whatever is under it\nhint: guard.mask_bits=32, or guard.masked=false"
        )
    if guard.masked and guard.mask_range * 1000 > 2.0 ** (guard.mask_bits - 10):
        wrong.append(
            f"guard.mask_range is {guard.mask_range:g}; {guard.mask_bits} bits would leave too few behind the point\n"
            "hint: a smaller guard.mask_range, or guard.mask_bits=64"
        )
    if guard.chosen < 0:
        wrong.append(f"guard.chosen is {guard.chosen}; it must be 0 or more")
    return wrong


def impossible_texts(s: Mapping[str, Any]) -> list[str]:
    """A pretrained network knows the codes of its own tokenizer; under others, texts are noise to it."""
    net, tokenizer = str(s["net"]["name"]), s["data"].get("tokenizer")
    if not net.startswith("hf:") or not s["data"].get("text") or tokenizer not in ("words", "hash"):
        return []
    folder = net.removeprefix("hf:")
    return [
        f"data.tokenizer is {tokenizer}, and net={net} has learned other codes: every word would be another one to it\n"
        f"hint: data.tokenizer={folder}, where the network's tokenizer.json lies"
    ]


def impossible_privacy(s: Mapping[str, Any]) -> list[str]:
    """Of the sections of a whole recipe."""
    privacy = PrivacySettings(**s["privacy"])
    if privacy.on:
        return [
            *_of_any_level(s, privacy),
            *(_of_client_level(s, privacy) if privacy.level == "client" else ()),
        ]
    usual = vars(PrivacySettings())
    given = [k for k, v in vars(privacy).items() if v != usual[k]]
    if not given:
        return []
    said = f"privacy.{given[0]} is {getattr(privacy, given[0])}"
    return [
        f"{said}, and privacy.level is none: nothing would be private\n"
        "hint: privacy.level=example protects single rows, privacy.level=client whole clients"
    ]


def _of_any_level(s: Mapping[str, Any], privacy: PrivacySettings) -> Iterator[str]:
    for name in ("epsilon", "noise_multiplier", "max_grad_norm"):
        if not math.isfinite(value := getattr(privacy, name)):
            yield f"privacy.{name} is {value:g}; it must be a finite number"
    if 0 < privacy.noise_multiplier < LEAST_NOISE:
        yield (
            f"privacy.noise_multiplier is {privacy.noise_multiplier:g}: less than {LEAST_NOISE:g} hides nothing, and "
            "no accountant counts it\nhint: privacy.noise_multiplier=1, or privacy.epsilon=1"
        )
    if not privacy.epsilon and not privacy.noise_multiplier:
        yield (
            f"privacy.level is {privacy.level}, and both privacy.epsilon and privacy.noise_multiplier are 0: without "
            "noise nothing is private\nhint: privacy.epsilon=1, or privacy.noise_multiplier=1"
        )
    if privacy.ledger_epsilon and not privacy.ledger:
        yield (
            f"privacy.ledger_epsilon is {privacy.ledger_epsilon:g}, and privacy.ledger names no file in which runs add "
            "up\nhint: privacy.ledger=runs/privacy.jsonl"
        )
    if s["train"]["after_training"]:
        yield (
            "train.after_training is true: it trains a second time in each round, which no budget counts\n"
            "hint: train.after_training=false"
        )
    if s["net"].get("class_weights", "none") == "balanced":
        yield (
            "net.class_weights is balanced: rows of each class are counted without noise\n"
            "hint: give class_weights as numbers that do not come from these rows"
        )


def _of_client_level(s: Mapping[str, Any], privacy: PrivacySettings) -> Iterator[str]:
    guard = GuardSettings(**s["guard"])
    if not guard.clip:
        yield (
            "privacy.level is client, and guard.clip is 0: noise hides an update only if its length is limited\n"
            "hint: guard.clip=1"
        )
    if guard.mean != "mean":
        yield (
            f"privacy.level is client, and guard.mean is {guard.mean}: noise is counted for a plain mean\n"
            "hint: guard.mean=mean"
        )
    if guard.compresses:
        yield (
            "privacy.level is client, and replies are compressed: what error feedback adds to a later update is longer "
            "than guard.clip\nhint: guard.bits=32 guard.top=1"
        )
    if privacy.clip_quantile and (privacy.noise == "clients" or guard.masked):
        yield (
            "privacy.clip_quantile is set: a trusted server adapts the clip, and sees which updates were short\n"
            "hint: privacy.noise=server guard.masked=false, or privacy.clip_quantile=0"
        )
    if guard.attack != "none":
        yield "privacy.level is client, and guard.attack changes replies after they were cut\nhint: guard.attack=none"

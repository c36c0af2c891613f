"""Keys of one masked sum: X25519, HKDF, and ChaCha20-Poly1305 for shares.

Every key is made from 16 random bytes and used in one sum. Knows bytes. Does not know the steps of a sum.
"""

from __future__ import annotations

import os
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from motet.guard.masks.refused import MaskRefused
from motet.guard.masks.shares import SEED

_ONCE = bytes(12)  # a nonce, of keys that seal one message


def new_seed() -> bytes:
    return os.urandom(SEED)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose."""
    return HKDF(hashes.SHA256(), 32, None, b"motet masks\0" + purpose).derive(secret)


def private_key(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derived(seed, b"private key"))


def public_bytes(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def agreed(own: X25519PrivateKey, other: bytes) -> bytes:
    """The secret of two parties."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as e:
        raise MaskRefused(f"a public key is none: {e}") from e


def pair_mask(own: X25519PrivateKey, other: bytes, context: bytes) -> bytes:
    """The key of the mask that two clients share in one sum."""
    return derived(agreed(own, other), b"pair\0" + context)


def self_mask(seed: bytes, context: bytes) -> bytes:
    return derived(seed, b"self\0" + context)


def seal(own: X25519PrivateKey, other: bytes, content: bytes, about: bytes) -> bytes:
    """The content for one other party alone; `about` names sum, sender and receiver."""
    return ChaCha20Poly1305(derived(agreed(own, other), b"share\0" + about)).encrypt(_ONCE, content, about)


def unseal(own: X25519PrivateKey, other: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """What was sealed; None where it is damaged, or for somebody else."""
    try:
        return ChaCha20Poly1305(derived(agreed(own, other), b"share\0" + about)).decrypt(_ONCE, sealed, about)
    except InvalidTag:
        return None


def route(context: bytes, sender: str, receiver: str) -> bytes:
    """What a sealed share is about."""
    return context + sha256(sender.encode()).digest() + sha256(receiver.encode()).digest()


def mark(share: bytes) -> bytes:
    """By which a true share is known; a share is 16 random bytes, so that its hash tells nothing of it."""
    return sha256(b"motet masks share\0" + share).digest()

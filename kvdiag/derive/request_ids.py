"""One identity for what engines call the same request by several names."""

import re

from kvdiag.model.record import Key

_PREFIX = re.compile(r"(?:chatcmpl|cmpl)-")
_ENGINE_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_FIRST_ITEM = re.compile(r"-0$")


def external_key(text: str) -> Key:
    """Return the key of an id as vLLM shows it outside: `cmpl-<X-Request-Id>-<item>` or `chatcmpl-<X-Request-Id>`.

    The first item of a completion is the request itself; a further one keeps its number, for it is a request of its
    own (vLLM 0.33: one per prompt).
    """
    prefix = _PREFIX.match(text)
    if prefix is None:
        return "id", text
    plain = text[prefix.end() :]
    return "id", _FIRST_ITEM.sub("", plain) if prefix[0] == "cmpl-" else plain


def answer_key(text: str) -> Key:
    """Return the key of the id in vLLM's answer, `cmpl-<X-Request-Id>`: of the request as a whole, without an item."""
    prefix = _PREFIX.match(text)
    return "id", text if prefix is None else text[prefix.end() :]


def engine_key(text: str) -> Key:
    """Return the key of an id as vLLM's engine core uses it in logs and `remote_request_id`.

    There eight random hexadecimal digits follow the outer id (`InputProcessor.assign_request_id`).
    """
    return external_key(_ENGINE_SUFFIX.sub("", text))


def room_key(room: int) -> Key:
    """Return the key of SGLang's bootstrap room, which its spans print in hexadecimal and its logs in decimal."""
    return "room", str(room)

"""What the mail API's answers mean. Touches no host: answers in, decisions out."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Accepted:
    """The message is the API's now, under this id."""

    id: str


@dataclass
class Refused:
    """Certainly not accepted."""

    retryable: bool


@dataclass
class NotThere:
    """The API has nothing under the key."""


@dataclass
class Unclear:
    """It may have been accepted; the text says why nobody can tell."""

    why: str


def of_send(status: int, body: bytes) -> Accepted | Refused | Unclear:
    """The meaning of an answer to a request to send.

    That a 4xx means "not accepted" is HTTP itself. That a 5xx does is a promise of this API's documentation: it breaks
    only before it has put a message into its queue. With an API that can break after accepting, the honest meaning of
    every 5xx is Unclear, as it is here for 502 and 504: those come from a proxy, which does not know what became of the
    request it passed on.
    """
    if 200 <= status <= 299:
        # Calling an unreadable success a failure would invite a second e-mail.
        id = id_of(parsed(body))
        return Accepted(id) if id else Unclear("it reports success without an id")
    if status in (502, 504):
        return Unclear("a proxy answered in its place")
    return Refused(retryable=status == 429 or 500 <= status <= 599)


def of_lookup(body: bytes, key: str) -> Accepted | NotThere | Unclear:
    """The meaning of an answer to a look-up by key; `body` is that of a 200.

    An answer that does not look as documented proves nothing, least of all that nothing was sent.
    """
    answer = parsed(body)
    messages = answer.get("messages") if isinstance(answer, dict) else None
    if not isinstance(messages, list):
        return Unclear("the mail API's answer to the look-up has no list of messages")
    # An API that does not know the parameter would list somebody else's messages.
    if any(not isinstance(message, dict) or message.get("key") != key for message in messages):
        return Unclear("the mail API answered the look-up with messages of another key")
    match messages:
        case []:
            return NotThere()
        case [one]:
            id = id_of(one)
            return Accepted(id) if id else Unclear("the message under this key has no id")
        case _:
            return Unclear(f"the mail API has {len(messages)} messages under this key")


def parsed(body: bytes) -> Any:
    """The body as JSON, or None: what cannot be read says nothing. (A RecursionError is JSON nested too deep.)"""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def id_of(message: Any) -> str | None:
    id = message.get("id") if isinstance(message, dict) else None
    return id if isinstance(id, str) and id else None

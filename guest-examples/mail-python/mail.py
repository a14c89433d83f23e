"""`mail/send` in Python: the same action as guest-examples/mail, decision for decision, and tested by the same cases.

It sends one e-mail to one or several recipients through an HTTP mail API. An ambiguous action: this API promises nothing
about repetitions, and an e-mail cannot be called back. So the code must be able to say three different things, and never
one for another:

- succeeded: the API said that it accepted the message;
- failed: the message was certainly not accepted, and may be sent again;
- ambiguous: it may have been accepted. The host does not repeat it, and asks `reconcile` or a person.

The decisions are in answer.py, which touches no host; here they meet the network. hello-python shows how the interface
looks from Python. An exception that nobody catches ends the instance: in `run`, after a request left, the host has to
treat that as an unknown fate. So whatever can be expected is answered.
"""

import json
from urllib.parse import quote

import answer
import http_client
from componentize_py_types import Err
from http_client import NotSent, Response, Unheard
from message import Message
from wit_world import exports
from wit_world.imports.tollgate_action_types import (
    ActionDescriptor,
    Consumption,
    Context,
    Doubt,
    EffectClass,
    Failure,
    Fate,
    Fate_Failed,
    Fate_Succeeded,
    Fate_Unknown,
    Hooks,
    HttpNeed,
    Issue,
    Limits,
    Outcome,
    Outcome_Ambiguous,
    Outcome_Failed,
    Outcome_Succeeded,
    Planned,
)


class Actions(exports.Actions):
    def describe(self) -> list[ActionDescriptor]:
        return [
            ActionDescriptor(
                name="send",
                title="Send an e-mail",
                description="Sends one e-mail, to one or several recipients in one request.",
                effect_class=EffectClass.AMBIGUOUS,
                hooks=Hooks.PLAN | Hooks.RECONCILE,
                config_schema=json.dumps(CONFIG_SCHEMA),
                output_schema=json.dumps(OUTPUT_SCHEMA),
                http=[
                    # Sending changes something, looking up does not: only the latter is open to `reconcile`.
                    HttpNeed(url=f"{scheme}://*/v1/messages", methods=[method], safe=method == "GET")
                    for scheme in ("https", "http")
                    for method in ("POST", "GET")
                ],
                meters=["emails"],
                limits=Limits(memory_bytes=None, cpu_ms=None, wall_ms=None, requests=None),
            )
        ]

    def plan(self, action: str, context: Context, config: str) -> Planned:
        """One e-mail per recipient, whatever the number of requests: that is what the API bills."""
        message = Message.parse(config)
        return Planned(
            summary=message.summary(),
            consumes=[Consumption(dimension="emails", amount=str(len(message.to)))],
            # The API chooses the id.
            output=None,
            issues=[
                Issue(code="ADDRESS_ODD", message=f"`{address}` does not look like an e-mail address")
                for address in message.odd_addresses()
            ],
        )

    def run(self, action: str, context: Context, config: str) -> Outcome:
        message = Message.parse(config)
        try:
            response = http_client.post_json(message.endpoint(), message.body())
        except NotSent as error:
            # No connection, so no message: there is nothing to be in doubt about.
            return Outcome_Failed(failure("MAIL_NOT_SENT", f"the mail API was not reached: {error}", retryable=True))
        except Unheard as error:
            # It may be on its way. If the host knows better (it refused the request itself), it settles this as a
            # failure.
            return doubt(f"the request was sent, the mail API's answer was not heard: {error}")

        match answer.of_send(response.status, response.body):
            case answer.Accepted(id):
                return Outcome_Succeeded(output(id, message))
            case answer.Refused(retryable):
                return Outcome_Failed(refused("MAIL_REFUSED", response, retryable))
            case answer.Unclear(why):
                return doubt(f"the mail API answered {response.status}, and {why}: {response.excerpt()}")

    def reconcile(self, action: str, context: Context, config: str) -> Fate:
        message = Message.parse(config)
        key = context.effect_key
        try:
            response = http_client.get(f"{message.endpoint()}?key={quote(key, safe='')}")
        except (NotSent, Unheard) as error:
            # The effect stays as it was; the host asks again later.
            raise Err(failure("MAIL_LOOKUP_FAILED", f"the mail API cannot be asked: {error}", retryable=True))
        if response.status != 200:
            retryable = response.status in (408, 429) or 500 <= response.status <= 599
            raise Err(refused("MAIL_LOOKUP_FAILED", response, retryable))

        match answer.of_lookup(response.body, key):
            case answer.Accepted(id):
                return Fate_Succeeded(output(id, message))
            case answer.NotThere():
                # The host knows how late an accepted message may still appear, and asks again before it believes this.
                text = "the mail API has no message under this key"
                return Fate_Failed(failure("MAIL_NOT_SENT", text, retryable=True))
            case answer.Unclear(why):
                return Fate_Unknown(why)

    # Not declared: whoever may start the run may send.
    def authorize(self, action: str, context: Context, config: str) -> None:
        pass


def output(id: str, message: Message) -> str:
    """The same from `run` and from `reconcile`: later steps cannot tell which of the two learned it."""
    return json.dumps({"id": id, "to": message.to})


def doubt(message: str) -> Outcome:
    return Outcome_Ambiguous(Doubt(message=message, code="MAIL_UNHEARD"))


def refused(code: str, response: Response, retryable: bool) -> Failure:
    message = f"the mail API answered {response.status}: {response.excerpt()}"
    return failure(code, message, retryable, response.retry_after_ms())


def failure(code: str, message: str, retryable: bool, retry_after_ms: int | None = None) -> Failure:
    return Failure(message=message, code=code, retryable=retryable, retry_after_ms=retry_after_ms, details=None)


ADDRESS = {"type": "string", "minLength": 1}

CONFIG_SCHEMA = {
    "type": "object",
    "required": ["api", "to", "subject"],
    "additionalProperties": False,
    "properties": {
        "api": {
            "type": "string",
            "pattern": "^https?://[^/?#]+/?$",
            "description": "Where the mail API is, without a path: `https://api.mail.example`.",
        },
        "to": {"oneOf": [ADDRESS, {"type": "array", "minItems": 1, "maxItems": 1000, "items": ADDRESS}]},
        "subject": {"type": "string"},
        "text": {"type": "string"},
    },
}

OUTPUT_SCHEMA = {
    "type": "object",
    "required": ["id", "to"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "description": "The mail API's name for the message."},
        "to": {"type": "array", "items": {"type": "string"}},
    },
}

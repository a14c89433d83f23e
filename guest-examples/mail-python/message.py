"""The message that a configuration describes. Touches no host."""

import json
from dataclasses import dataclass


@dataclass
class Message:
    api: str
    to: list[str]
    """As written, repetitions included: each is one e-mail."""
    subject: str
    text: str | None

    @classmethod
    def parse(cls, config: str) -> "Message":
        """The host has checked the configuration against the schema, so nothing is checked twice here."""
        fields = json.loads(config)
        to = fields["to"]
        return cls(
            api=fields["api"].rstrip("/"),
            to=[to] if isinstance(to, str) else to,
            subject=fields["subject"],
            text=fields.get("text"),
        )

    def endpoint(self) -> str:
        return f"{self.api}/v1/messages"

    def body(self) -> str:
        """The same text at every attempt: the host compares requests under one key."""
        body = {"to": self.to, "subject": self.subject}
        if self.text is not None:
            body["text"] = self.text
        return json.dumps(body, sort_keys=True)

    def summary(self) -> str:
        """One line, also where the recipients are many."""
        match self.to:
            case [one]:
                return f"send 1 e-mail to {one}"
            case [first, second]:
                return f"send 2 e-mails to {first} and {second}"
            case many:
                return f"send {len(many)} e-mails to {many[0]} and {len(many) - 1} others"

    def odd_addresses(self) -> list[str]:
        """What no mail API would take. Worth an issue in a dry run; the API has the last word."""
        return [address for address in self.to if is_odd(address)]


def is_odd(address: str) -> bool:
    name, _, host = address.partition("@")
    has_control = any(character < " " or "\x7f" <= character <= "\x9f" for character in address)
    return not name or not host or has_control

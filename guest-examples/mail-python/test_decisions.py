"""What needs no host to be tested: python3 -m unittest discover guest-examples/mail-python"""

import json
import unittest

import answer
from answer import Accepted, NotThere, Refused, Unclear
from message import Message


def message(to) -> Message:
    return Message.parse(json.dumps({"api": "http://127.0.0.1:1/", "to": to, "subject": "Hello"}))


class Decisions(unittest.TestCase):
    def test_answers_to_sending(self):
        for body in (b"", b"ok", b"{}", b'{"id":""}', b"\xff", b"[" * 100_000):
            self.assertIsInstance(answer.of_send(202, body), Unclear)
        self.assertEqual(answer.of_send(201, b'{"id":"msg-1"}'), Accepted("msg-1"))
        self.assertIsInstance(answer.of_send(504, b""), Unclear)
        for status, retryable in ((302, False), (400, False), (422, False), (429, True), (500, True), (503, True)):
            self.assertEqual(answer.of_send(status, b""), Refused(retryable), status)

    def test_answers_to_looking_up(self):
        def check(body: str, expected):
            self.assertEqual(answer.of_lookup(body.encode(), "k"), expected, body)

        check('{"messages":[]}', NotThere())
        check('{"messages":[{"id":"msg-1","key":"k"}]}', Accepted("msg-1"))
        for unclear in (
            "",
            "[]",
            "{}",
            '{"messages":[1]}',
            '{"messages":[{"id":"msg-1"}]}',
            '{"messages":[{"id":"msg-1","key":"other"}]}',
            '{"messages":[{"id":"msg-1","key":"k"},{"id":"msg-2","key":"k"}]}',
            '{"messages":[{"key":"k"}]}',
        ):
            self.assertIsInstance(answer.of_lookup(unclear.encode(), "k"), Unclear, unclear)

    def test_one_line_says_how_many_and_to_whom(self):
        def check(to, summary: str):
            self.assertEqual(message(to).summary(), summary)

        check("a@example.com", "send 1 e-mail to a@example.com")
        check(["a@example.com"], "send 1 e-mail to a@example.com")
        check(["a@example.com", "b@example.com"], "send 2 e-mails to a@example.com and b@example.com")
        check(["a@example.com", "b@example.com", "c@example.com"], "send 3 e-mails to a@example.com and 2 others")

    def test_the_request_is_the_same_every_time(self):
        one = message("a@example.com")
        self.assertEqual(one.endpoint(), "http://127.0.0.1:1/v1/messages")
        self.assertEqual(one.body(), '{"subject": "Hello", "to": ["a@example.com"]}')

    def test_odd_addresses_are_found(self):
        odd = message(["a@example.com", "nobody", "@example.com", "a@b\n"]).odd_addresses()
        self.assertEqual(odd, ["nobody", "@example.com", "a@b\n"])


if __name__ == "__main__":
    unittest.main()

//! What the mail API's answers mean. Touches no host: answers in, decisions out.

use serde_json::Value;

/// The meaning of an answer to a request to send.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    Accepted(String),
    Refused {
        retryable: bool,
    },
    /// It may have been accepted; the text says why nobody can tell.
    Unclear(&'static str),
}

/// That a 4xx means "not accepted" is HTTP itself. That a 5xx does is a promise of this API's documentation: it breaks
/// only before it has put a message into its queue. With an API that can break after accepting, the honest meaning of
/// every 5xx is `Unclear`, as it is here for 502 and 504: those come from a proxy, which does not know what became of the
/// request it passed on.
pub fn of_send(status: u16, body: &[u8]) -> Sent {
    match status {
        // Calling an unreadable success a failure would invite a second e-mail.
        200..=299 => id(&json(body)).map_or(Sent::Unclear("it reports success without an id"), Sent::Accepted),
        502 | 504 => Sent::Unclear("a proxy answered in its place"),
        429 | 500..=599 => Sent::Refused { retryable: true },
        _ => Sent::Refused { retryable: false },
    }
}

/// The meaning of an answer to a look-up by key.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    One(String),
    None,
    Unclear(String),
}

/// `body` is that of a 200. An answer that does not look as documented proves nothing, least of all that nothing was sent.
pub fn of_lookup(body: &[u8], key: &str) -> Found {
    let answer = json(body);
    let Some(messages) = answer["messages"].as_array() else {
        return Found::Unclear("the mail API's answer to the look-up has no list of messages".into());
    };
    // An API that does not know the parameter would list somebody else's messages.
    if messages.iter().any(|message| message["key"].as_str() != Some(key)) {
        return Found::Unclear("the mail API answered the look-up with messages of another key".into());
    }
    match messages.as_slice() {
        [] => Found::None,
        [one] => id(one).map_or_else(|| Found::Unclear("the message under this key has no id".into()), Found::One),
        several => Found::Unclear(format!("the mail API has {} messages under this key", several.len())),
    }
}

fn json(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or(Value::Null)
}

fn id(message: &Value) -> Option<String> {
    message["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{Found, Sent, of_lookup, of_send};

    #[test]
    fn answers_to_sending() {
        let unread: [&[u8]; 4] = [b"", b"ok", b"{}", br#"{"id":""}"#];
        for body in unread {
            assert!(matches!(of_send(202, body), Sent::Unclear(_)));
        }
        assert_eq!(of_send(201, br#"{"id":"msg-1"}"#), Sent::Accepted("msg-1".into()));
        assert!(matches!(of_send(504, b""), Sent::Unclear(_)));
        for (status, retryable) in [(302, false), (400, false), (422, false), (429, true), (500, true), (503, true)] {
            assert_eq!(of_send(status, b""), Sent::Refused { retryable }, "{status}");
        }
    }

    #[test]
    fn answers_to_looking_up() {
        #[track_caller]
        fn check(body: &str, expected: Found) {
            assert_eq!(of_lookup(body.as_bytes(), "k"), expected);
        }
        check(r#"{"messages":[]}"#, Found::None);
        check(r#"{"messages":[{"id":"msg-1","key":"k"}]}"#, Found::One("msg-1".into()));
        for unclear in [
            "",
            "[]",
            "{}",
            r#"{"messages":[{"id":"msg-1"}]}"#,
            r#"{"messages":[{"id":"msg-1","key":"other"}]}"#,
            r#"{"messages":[{"id":"msg-1","key":"k"},{"id":"msg-2","key":"k"}]}"#,
            r#"{"messages":[{"key":"k"}]}"#,
        ] {
            assert!(matches!(of_lookup(unclear.as_bytes(), "k"), Found::Unclear(_)), "{unclear}");
        }
    }
}

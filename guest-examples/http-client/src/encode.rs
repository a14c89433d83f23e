//! Percent-encoding of a value in a query string. Nothing here decodes.

/// `text` as one value of a query string. Everything but RFC 3986's unreserved characters is escaped, so that no key,
/// whatever it contains, can end the value or begin another.
pub fn query_value(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::query_value;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(query_value(text), expected);
    }

    #[test]
    fn only_unreserved_characters_stay() {
        check("", "");
        check("plain-1.0_~", "plain-1.0_~");
        check("workflow:r1:step:notify[INV-7]#gate", "workflow%3Ar1%3Astep%3Anotify%5BINV-7%5D%23gate");
        check("a&b=c d+e%", "a%26b%3Dc%20d%2Be%25");
        check("é", "%C3%A9");
    }
}

//! Keeping secrets out of what is shown: exact occurrences are replaced, in bytes and in text.
//!
//! It does not find a secret that was encoded, split or transformed: only what the host itself wrote, and the forms in
//! which it wrote it.

use bytes::Bytes;

const REPLACEMENT: &str = "[redacted]";

/// The texts that must not be shown.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    texts: Vec<String>,
}

impl Redactor {
    /// Redacts every text of `texts`; empty ones are ignored.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Redactor {
        let mut texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        // Longer ones first: a secret that contains another is replaced whole.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts.dedup();
        Redactor { texts }
    }

    /// `text` without the secrets.
    pub fn text(&self, text: &str) -> String {
        self.texts.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), REPLACEMENT))
    }

    /// `bytes` without the secrets; the very same bytes where none occurs.
    pub fn bytes(&self, bytes: Bytes) -> Bytes {
        self.texts.iter().fold(bytes, |bytes, secret| match replace(&bytes, secret.as_bytes()) {
            Some(redacted) => Bytes::from(redacted),
            None => bytes,
        })
    }
}

/// Never shows what it redacts.
impl std::fmt::Debug for Redactor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Redactor({} texts)", self.texts.len())
    }
}

fn replace(haystack: &[u8], needle: &[u8]) -> Option<Vec<u8>> {
    let mut found = false;
    let mut out = Vec::with_capacity(haystack.len());
    let mut rest = haystack;
    while let Some(at) = rest.windows(needle.len()).position(|window| window == needle) {
        found = true;
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(REPLACEMENT.as_bytes());
        rest = &rest[at + needle.len()..];
    }
    out.extend_from_slice(rest);
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_goes_and_nothing_else_changes() {
        let redactor = Redactor::new(["hunter2".to_owned(), String::new(), "hunter2-long".to_owned()]);
        assert_eq!(redactor.text("a hunter2 b hunter2-long c hunter"), "a [redacted] b [redacted] c hunter");
        assert_eq!(redactor.bytes(Bytes::from_static(b"\xffhunter2\x00")), Bytes::from_static(b"\xff[redacted]\x00"));
        assert_eq!(redactor.bytes(Bytes::from_static(b"\xff\x00")), Bytes::from_static(b"\xff\x00"));
        assert_eq!(format!("{redactor:?}"), "Redactor(2 texts)");
    }
}

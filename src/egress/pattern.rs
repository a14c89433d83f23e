//! The URL of a rule: which addresses on the web it stands for, and whether two rules could stand for the same one.
//!
//! A pattern is compared with a URL after both were normalised the way browsers and HTTP clients do it (the WHATWG URL
//! standard), so that two spellings of one request cannot be judged differently. A URL that two servers could read
//! differently matches no pattern at all: see [`UrlPattern::matches`]. This module looks at names and paths only; it
//! resolves nothing, and what address a name stands for is judged elsewhere.

use std::fmt;

use url::{Host, Url};

/// The longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 2048;

/// A URL pattern: `https://api.mail.example/v1/messages/*`.
///
/// - The scheme is `http` or `https`, and counts. So does the port; without one it is the scheme's own.
/// - The host is one name or address, or `*.` and a name: then it stands for every name below that one, however many
///   labels deep, and not for the name itself.
/// - A segment of the path is literal, or `*`: exactly one segment, not an empty one. A last `**` is the rest of the
///   path, which may be nothing: `/v1/**` stands for `/v1`, `/v1/` and `/v1/a/b`. A star that is meant literally is
///   written `%2A`.
/// - The host is compared without case, the path with it. `/a` and `/a/` differ. The query does not count.
///
/// ```
/// use tollgate::egress::pattern::UrlPattern;
///
/// let pattern = UrlPattern::parse("https://*.mail.example/v1/messages/*")?;
/// assert!(pattern.matches(&"https://eu.MAIL.example/v1/messages/17?full=1".parse()?));
/// assert!(!pattern.matches(&"https://mail.example/v1/messages/17".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UrlPattern {
    scheme: Scheme,
    host: HostPattern,
    port: u16,
    segments: Vec<Segment>,
    /// Whether any further segments may follow.
    rest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Scheme {
    Http,
    Https,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum HostPattern {
    /// The whole host, normalised, without a final dot.
    Exact(String),
    /// What follows `*.`: a name, normalised, without a final dot.
    Below(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Segment {
    /// In the form that [`canonical_segment`] makes.
    Literal(String),
    Any,
}

/// What of a URL is compared with a pattern.
struct Target {
    scheme: Scheme,
    host: String,
    /// False for an IP address, which is below no name.
    named: bool,
    port: u16,
    segments: Vec<String>,
}

impl UrlPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong, as a clause that follows the pattern: no or another scheme, user name, query or fragment, a star
    /// that is not a whole segment or the first label of the host, `**` anywhere but last, and every form of path that
    /// no URL can be matched by (see [`UrlPattern::matches`]).
    pub fn parse(text: &str) -> Result<UrlPattern, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("is longer than {PATTERN_BYTES_MAX} bytes"));
        }
        if text.chars().any(|character| character.is_whitespace() || character.is_control()) {
            return Err("holds white space or a control character".to_owned());
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Scheme::Https, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Scheme::Http, rest),
            _ => return Err("does not start with https:// or http://".to_owned()),
        };
        for (sign, what) in [
            ('?', "has a query: leave it out, a rule stands for every query"),
            ('#', "has a fragment, which is never sent: leave it out"),
            ('\\', "has a backslash: write / instead"),
        ] {
            if rest.contains(sign) {
                return Err(what.to_owned());
            }
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("has a user name: state it as `auth`, with a secret".to_owned());
        }
        let (below, authority) = match authority.strip_prefix("*.") {
            Some(suffix) => (true, suffix),
            None => (false, authority),
        };
        if authority.is_empty() || authority.starts_with(':') {
            return Err("has no host".to_owned());
        }
        let star_in_host = "has a `*` in its host that is not its whole first label, or the only one".to_owned();
        if authority.contains('*') {
            return Err(star_in_host);
        }
        // Parsing would resolve dot segments silently; an operator who wrote one should know.
        for segment in path.split('/') {
            canonical_segment(segment)?;
        }
        let url = Url::parse(&format!("{}://{authority}{path}", scheme.as_str()))
            .map_err(|error| format!("is no URL: {error}"))?;
        let target = Target::of(&url)?;
        if below && !target.named {
            return Err("has `*.` before something that is no name".to_owned());
        }

        let mut segments = Vec::new();
        let mut rest = false;
        let written: Vec<&str> = url.path().split('/').skip(1).collect();
        for (index, (raw, literal)) in written.iter().zip(target.segments).enumerate() {
            match *raw {
                "*" => segments.push(Segment::Any),
                "**" if index + 1 == written.len() => rest = true,
                "**" => return Err("has `**` before its end: it can only be the last segment".to_owned()),
                raw if raw.contains('*') => {
                    return Err("has a `*` that is not a whole segment (write %2A for the character itself)".to_owned());
                }
                _ => segments.push(Segment::Literal(literal)),
            }
        }
        let host = if below { HostPattern::Below(target.host) } else { HostPattern::Exact(target.host) };
        Ok(UrlPattern { scheme, host, port: target.port, segments, rest })
    }

    /// The pattern that stands for this URL alone, with any query.
    ///
    /// # Errors
    /// Why no pattern stands for it, as a clause that follows the URL: see [`UrlPattern::matches`].
    pub fn exactly(url: &Url) -> Result<UrlPattern, &'static str> {
        let target = Target::of(url)?;
        let pattern = UrlPattern {
            scheme: target.scheme,
            host: HostPattern::Exact(target.host),
            port: target.port,
            segments: target.segments.into_iter().map(Segment::Literal).collect(),
            rest: false,
        };
        // Whoever writes it into a policy must be able to read it back.
        if pattern.to_string().len() > PATTERN_BYTES_MAX {
            return Err("is longer than a pattern can be");
        }
        Ok(pattern)
    }

    /// Whether this pattern stands for `url`.
    ///
    /// In the path, an encoded letter, digit, `-`, `.`, `_` or `~` is the character itself, and the digits of every
    /// other encoding are compared without case; an encoded character and a plain one are otherwise two things (`%3B`
    /// is not `;`). One dot at the end of the host does not count.
    ///
    /// A URL that servers read in different ways matches nothing: one with a user name or password; an encoded slash,
    /// backslash or control character; a dot segment, be it encoded or followed by `;`; an empty segment before the
    /// end; a `%` without two hexadecimal digits; an empty label or a star in the host; or a scheme other than `http`
    /// and `https`.
    pub fn matches(&self, url: &Url) -> bool {
        let Ok(target) = Target::of(url) else { return false };
        let host = match &self.host {
            HostPattern::Exact(host) => *host == target.host,
            HostPattern::Below(suffix) => target.named && is_below(&target.host, suffix),
        };
        let length = match self.rest {
            true => target.segments.len() >= self.segments.len(),
            false => target.segments.len() == self.segments.len(),
        };
        let matches_segment = |(pattern, segment): (&Segment, &String)| match pattern {
            Segment::Literal(literal) => literal == segment,
            Segment::Any => !segment.is_empty(),
        };
        self.scheme == target.scheme
            && self.port == target.port
            && host
            && length
            && self.segments.iter().zip(&target.segments).all(matches_segment)
    }

    /// Whether there is any URL for which both patterns stand.
    pub fn overlaps(&self, other: &UrlPattern) -> bool {
        let hosts = match (&self.host, &other.host) {
            (HostPattern::Exact(one), HostPattern::Exact(two)) => one == two,
            (HostPattern::Exact(host), HostPattern::Below(suffix))
            | (HostPattern::Below(suffix), HostPattern::Exact(host)) => is_below(host, suffix),
            (HostPattern::Below(one), HostPattern::Below(two)) => {
                one == two || is_below(one, two) || is_below(two, one)
            }
        };
        let (shorter, longer) = if self.segments.len() <= other.segments.len() { (self, other) } else { (other, self) };
        let segments_meet = |(one, two): (&Segment, &Segment)| match (one, two) {
            (Segment::Literal(one), Segment::Literal(two)) => one == two,
            (Segment::Literal(literal), Segment::Any) | (Segment::Any, Segment::Literal(literal)) => {
                !literal.is_empty()
            }
            (Segment::Any, Segment::Any) => true,
        };
        self.scheme == other.scheme
            && self.port == other.port
            && hosts
            && (shorter.rest || shorter.segments.len() == longer.segments.len())
            && shorter.segments.iter().zip(&longer.segments).all(segments_meet)
    }
}

/// The pattern in its normal form; reading it again gives the same pattern.
impl fmt::Display for UrlPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (star, host) = match &self.host {
            HostPattern::Exact(host) => ("", host),
            HostPattern::Below(suffix) => ("*.", suffix),
        };
        write!(formatter, "{}://{star}{host}", self.scheme.as_str())?;
        if self.port != self.scheme.default_port() {
            write!(formatter, ":{}", self.port)?;
        }
        for segment in &self.segments {
            match segment {
                Segment::Literal(literal) => write!(formatter, "/{literal}")?,
                Segment::Any => formatter.write_str("/*")?,
            }
        }
        if self.rest { formatter.write_str("/**") } else { Ok(()) }
    }
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

impl Target {
    fn of(url: &Url) -> Result<Target, &'static str> {
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err("has a scheme other than http and https"),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("has a user name or password");
        }
        let (host, named) = match url.host() {
            Some(Host::Domain(name)) => (name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(), true),
            Some(Host::Ipv4(ip)) => (ip.to_string(), false),
            Some(Host::Ipv6(ip)) => (format!("[{ip}]"), false),
            None => return Err("has no host"),
        };
        if host.split('.').any(str::is_empty) {
            return Err("has an empty label in its host");
        }
        if host.contains('*') {
            return Err("has a `*` in its host");
        }
        // `split` gives the empty text before the first slash, and at least one segment after it.
        let segments: Vec<String> =
            url.path().split('/').skip(1).map(canonical_segment).collect::<Result<_, &'static str>>()?;
        if segments.iter().rev().skip(1).any(String::is_empty) {
            return Err("has an empty segment before the end of its path");
        }
        let port = url.port().unwrap_or(scheme.default_port());
        Ok(Target { scheme, host, named, port, segments })
    }
}

fn is_below(host: &str, suffix: &str) -> bool {
    host.strip_suffix(suffix).is_some_and(|labels| labels.len() > 1 && labels.ends_with('.'))
}

/// One spelling for every segment that means the same: unreserved characters (RFC 3986, section 2.3) plain, everything
/// else that was encoded in upper-case hexadecimal. A star is always encoded, so that it is never mistaken for a
/// wildcard.
fn canonical_segment(segment: &str) -> Result<String, &'static str> {
    let mut canonical = String::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = (bytes.next().and_then(hexadecimal), bytes.next().and_then(hexadecimal));
                let (Some(high), Some(low)) = digits else {
                    return Err("has a `%` without two hexadecimal digits in its path");
                };
                match high << 4 | low {
                    b'/' | b'\\' => return Err("has an encoded slash or backslash in its path"),
                    byte if byte.is_ascii_control() => return Err("has an encoded control character in its path"),
                    byte if is_unreserved(byte) => canonical.push(char::from(byte)),
                    byte => canonical.push_str(&format!("%{byte:02X}")),
                }
            }
            b'*' => canonical.push_str("%2A"),
            byte if byte.is_ascii() => canonical.push(char::from(byte)),
            byte => canonical.push_str(&format!("%{byte:02X}")),
        }
    }
    // Some servers cut parameters off (`/..;x/`) before they resolve dots.
    let name = canonical.split(';').next().unwrap_or_default();
    let name = name.split("%3B").next().unwrap_or_default();
    if matches!(name, "." | "..") {
        return Err("has a dot segment in its path");
    }
    Ok(canonical)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn hexadecimal(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check_shown(text: &str, expected: &str) {
        assert_eq!(UrlPattern::parse(text).map(|pattern| pattern.to_string()), Ok(expected.to_owned()), "{text}");
    }

    #[test]
    fn a_pattern_has_one_normal_form() {
        check_shown("https://a.example", "https://a.example/");
        check_shown("HTTPS://A.Example:443/B", "https://a.example/B");
        check_shown("http://a.example:80/", "http://a.example/");
        check_shown("http://a.example:443/", "http://a.example:443/");
        check_shown("http://a.example./x", "http://a.example/x");
        check_shown("https://*.A.example/*/b/**", "https://*.a.example/*/b/**");
        check_shown("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC");
        check_shown("http://127.1:8080/**", "http://127.0.0.1:8080/**");
        check_shown("http://[::0001]:9/x", "http://[::1]:9/x");
        check_shown("http://a.example/%61%7e%2a%c3", "http://a.example/a~%2A%C3");
    }

    #[track_caller]
    fn check_refused(text: &str, expected: &str) {
        let error = UrlPattern::parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error:?} does not say {expected:?}");
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        check_refused("", "does not start with");
        check_refused("api.example/v1", "does not start with");
        check_refused("//api.example/v1", "does not start with");
        check_refused("*://api.example/v1", "does not start with");
        check_refused("ftp://api.example/v1", "does not start with");
        check_refused("https:api.example/v1", "does not start with");
        check_refused("https://", "has no host");
        check_refused("https:///v1", "has no host");
        check_refused("https://:80/v1", "has no host");
        check_refused("https://*./v1", "has no host");
        check_refused("https://user@a.example/", "has a user name");
        check_refused("https://user:word@a.example/", "has a user name");
        check_refused("https://a.example/?x", "has a query");
        check_refused("https://a.example?x", "has a query");
        check_refused("https://a.example/#x", "has a fragment");
        check_refused("https://a.example\\x", "has a backslash");
        check_refused("https://a.example/ x", "white space");
        check_refused("https://a.example/\tx", "white space");
        check_refused("https://a.example/\0", "control character");
        for host in ["*", "a*.example", "*a.example", "a.*.example", "*.*.example", "%2A.example", "a.example:*"] {
            check_refused(&format!("https://{host}/"), "a `*` in its host");
        }
        check_refused("https://*.127.0.0.1/", "no name");
        check_refused("https://*.[::1]/", "no name");
        check_refused("https://*.1/", "no name");
        check_refused("https://.a.example/", "empty label");
        check_refused("https://a..example/", "empty label");
        check_refused("https://a.example:99999/", "invalid port");
        check_refused("https://a b/", "white space");
        check_refused("https://a.example/**/x", "`**` before its end");
        check_refused("https://a.example/**/", "`**` before its end");
        check_refused("https://a.example/a*", "not a whole segment");
        check_refused("https://a.example/***", "not a whole segment");
        check_refused("https://a.example/a/../b", "dot segment");
        check_refused("https://a.example/./b", "dot segment");
        check_refused("https://a.example/%2e%2E/b", "dot segment");
        check_refused("https://a.example/..;x/b", "dot segment");
        check_refused("https://a.example/a%2fb", "encoded slash");
        check_refused("https://a.example/a%5Cb", "encoded slash or backslash");
        check_refused("https://a.example/%00", "control character");
        check_refused("https://a.example/%0d%0a", "control character");
        check_refused("https://a.example/%", "without two hexadecimal digits");
        check_refused("https://a.example/%zz", "without two hexadecimal digits");
        check_refused("https://a.example//b", "empty segment");
        check_refused("https://a.example//", "empty segment");
        check_refused(&format!("https://a.example/{}", "a".repeat(2048)), "longer than");
    }

    #[track_caller]
    fn check(pattern: &str, url: &str, expected: bool) {
        let parsed = UrlPattern::parse(pattern).unwrap();
        assert_eq!(parsed.matches(&Url::parse(url).unwrap()), expected, "{pattern} and {url}");
    }

    #[test]
    fn scheme_and_port_count() {
        check("https://a.example/", "https://a.example", true);
        check("https://a.example/", "https://a.example:443/", true);
        check("https://a.example/", "http://a.example/", false);
        check("https://a.example/", "https://a.example:8443/", false);
        check("http://a.example:443/", "https://a.example/", false);
        check("https://a.example:8443/", "https://a.example:8443/", true);
        check("https://a.example/", "ftp://a.example/", false);
        check("https://a.example/", "wss://a.example/", false);
    }

    #[test]
    fn a_host_is_compared_after_normalisation() {
        check("https://a.example/", "https://A.EXAMPLE/", true);
        check("https://a.example/", "https://a.example./", true);
        check("https://a.example./", "https://a.example/", true);
        check("https://a.example/", "https://a.example../", false);
        check("https://a.example/", "https://%61.example/", true);
        check("https://bücher.example/", "https://xn--bcher-kva.example/", true);
        check("https://a.example/", "https://ａ.example/", true); // IDNA folds the full-width letter
        check("https://a.example/", "https://b.a.example/", false);
        check("https://a.example/", "https://a.example.evil.example/", false);
        check("http://127.0.0.1/", "http://2130706433/", true);
        check("http://127.0.0.1/", "http://0x7f.1/", true);
        check("http://[::1]/", "http://[0:0::1]/", true);
        check("http://127.0.0.1/", "http://[::ffff:127.0.0.1]/", false);
    }

    #[test]
    fn a_leading_star_stands_for_names_below_and_not_for_the_name() {
        check("https://*.a.example/", "https://b.a.example/", true);
        check("https://*.a.example/", "https://c.b.a.example/", true);
        check("https://*.a.example/", "https://b.a.example./", true);
        check("https://*.a.example/", "https://a.example/", false);
        check("https://*.a.example/", "https://.a.example/", false);
        check("https://*.a.example/", "https://ba.example/", false);
        check("https://*.a.example/", "https://xa.example/", false);
        check("https://*.a.example/", "https://b..a.example/", false);
        check("https://*.a.example/", "https://*.a.example/", false);
    }

    #[test]
    fn a_path_is_compared_by_segments() {
        check("https://a.example/v1", "https://a.example/v1", true);
        check("https://a.example/v1", "https://a.example/v1?x=/../..", true);
        check("https://a.example/v1", "https://a.example/v1#x", true);
        check("https://a.example/v1", "https://a.example/V1", false);
        check("https://a.example/v1", "https://a.example/v1/", false);
        check("https://a.example/v1/", "https://a.example/v1", false);
        check("https://a.example/v1", "https://a.example/v1/x", false);
        check("https://a.example/v1", "https://a.example/v11", false);
        check("https://a.example/v1/*", "https://a.example/v1/x", true);
        check("https://a.example/v1/*", "https://a.example/v1/", false);
        check("https://a.example/v1/*", "https://a.example/v1/x/y", false);
        check("https://a.example/*/x", "https://a.example/v1/x", true);
        check("https://a.example/v1/**", "https://a.example/v1", true);
        check("https://a.example/v1/**", "https://a.example/v1/", true);
        check("https://a.example/v1/**", "https://a.example/v1/x/y/", true);
        check("https://a.example/v1/**", "https://a.example/v1x", false);
        check("https://a.example/**", "https://a.example/", true);
        check("https://a.example", "https://a.example/x", false);
    }

    #[test]
    fn another_spelling_of_a_path_is_the_same_path() {
        check("https://a.example/v1", "https://a.example/%761", true);
        check("https://a.example/%761", "https://a.example/v1", true);
        check("https://a.example/ü", "https://a.example/%c3%bc", true);
        check("https://a.example/v1", "https://a.example/x/../v1", true);
        check("https://a.example/v1", "https://a.example/x/%2e%2E/v1", true);
        check("https://a.example/v1/x", "https://a.example/v1\\x", true); // what a client would send
        check("https://a.example/a%3bb", "https://a.example/a%3Bb", true);
        check("https://a.example/a%3Bb", "https://a.example/a;b", false);
        check("https://a.example/%2A", "https://a.example/*", true);
        check("https://a.example/%2A", "https://a.example/x", false);
    }

    #[test]
    fn a_url_that_servers_read_in_different_ways_matches_nothing() {
        for url in [
            "https://user@a.example/x",
            "https://:word@a.example/x",
            "https://a.example/x%2Fy",
            "https://a.example/x%2fy",
            "https://a.example/x%5cy",
            "https://a.example/x/..;/y",
            "https://a.example/x/..%3By",
            "https://a.example/x/.;/y",
            "https://a.example/x/%2e%2e;/y",
            "https://a.example/x%00",
            "https://a.example/x%0Ay",
            "https://a.example/x%7f",
            "https://a.example/x//y",
            "https://a.example//",
            "https://a.example//x",
            "https://a.example/100%",
            "https://a.example/%zz",
            "https://a.example/%4",
            "data:text/plain,x",
            "file:///x",
        ] {
            check("https://a.example/**", url, false);
            assert!(UrlPattern::exactly(&Url::parse(url).unwrap()).is_err(), "{url}");
        }
        check("https://a.example/**", "https://@a.example/x", true); // normalisation drops an empty user name
        check("https://a.example/**", "https://a.example/x/y/", true);
        check("https://a.example/**", "https://a.example/...", true);
    }

    #[track_caller]
    fn check_overlap(one: &str, two: &str, expected: bool) {
        let (first, second) = (UrlPattern::parse(one).unwrap(), UrlPattern::parse(two).unwrap());
        assert_eq!(first.overlaps(&second), expected, "{one} and {two}");
        assert_eq!(second.overlaps(&first), expected, "{two} and {one}");
        assert!(first.overlaps(&first) && second.overlaps(&second));
    }

    #[test]
    fn two_patterns_overlap_where_one_url_matches_both() {
        check_overlap("https://a.example/x", "https://a.example:443/%78", true);
        check_overlap("https://a.example/x", "http://a.example/x", false);
        check_overlap("https://a.example/x", "https://a.example:8443/x", false);
        check_overlap("https://a.example/x", "https://a.example/y", false);
        check_overlap("https://a.example/*", "https://a.example/y", true);
        check_overlap("https://a.example/*/b", "https://a.example/a/*", true);
        check_overlap("https://a.example/*/b", "https://a.example/a/c", false);
        check_overlap("https://a.example/a/*", "https://a.example/a/", false);
        check_overlap("https://a.example/a/**", "https://a.example/a/", true);
        check_overlap("https://a.example/a/**", "https://a.example/a", true);
        check_overlap("https://a.example/a/**", "https://a.example/", false);
        check_overlap("https://a.example/a/**", "https://a.example/*/b/**", true);
        check_overlap("https://a.example/a/**", "https://a.example/b/**", false);
        check_overlap("https://a.example/**", "https://a.example/a/b/*", true);
        check_overlap("https://*.a.example/", "https://a.example/", false);
        check_overlap("https://*.a.example/", "https://b.a.example/", true);
        check_overlap("https://*.a.example/", "https://*.b.a.example/", true);
        check_overlap("https://*.a.example/", "https://*.ba.example/", false);
        check_overlap("https://*.example/", "http://127.0.0.1/", false);
    }

    fn a_path() -> impl Strategy<Value = String> {
        let segment = prop_oneof![Just("a"), Just("b"), Just("%61"), Just("%2A"), Just("c;d")];
        (proptest::collection::vec(segment, 0..4), any::<bool>()).prop_map(|(segments, slash)| {
            let end = if slash && !segments.is_empty() { "/" } else { "" };
            format!("/{}{end}", segments.join("/"))
        })
    }

    fn a_pattern() -> impl Strategy<Value = String> {
        let segment = prop_oneof![Just("a"), Just("b"), Just("*"), Just("%2a")];
        let host = prop_oneof![Just("x.y.example"), Just("*.y.example"), Just("*.example"), Just("y.example")];
        (host, proptest::collection::vec(segment, 0..4), 0..3).prop_map(|(host, segments, end)| {
            let end = match (end, segments.is_empty()) {
                (0, _) => "",
                (1, true) => "**",
                (1, false) => "/**",
                (_, true) => "",
                (_, false) => "/",
            };
            format!("https://{host}/{}{end}", segments.join("/"))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_matches_both_shows_that_they_overlap(
            one in a_pattern(), two in a_pattern(), path in a_path(),
            host in prop_oneof![Just("x.y.example"), Just("y.example"), Just("z.y.example"), Just("z.example")],
        ) {
            let url = Url::parse(&format!("https://{host}{path}")).unwrap();
            let (one, two) = (UrlPattern::parse(&one).unwrap(), UrlPattern::parse(&two).unwrap());
            prop_assert_eq!(one.overlaps(&two), two.overlaps(&one));
            if one.matches(&url) && two.matches(&url) {
                prop_assert!(one.overlaps(&two), "{} and {} both match {}", one, two, url);
            }
        }

        // The other direction: where they are said to overlap, there is a URL to prove it. It is made of the literals
        // of either and a fresh name for what neither states.
        #[test]
        fn where_they_overlap_one_url_matches_both(one in a_pattern(), two in a_pattern()) {
            let (one, two) = (UrlPattern::parse(&one).unwrap(), UrlPattern::parse(&two).unwrap());
            if one.overlaps(&two) {
                let host = match (&one.host, &two.host) {
                    (HostPattern::Exact(host), _) | (_, HostPattern::Exact(host)) => host.clone(),
                    (HostPattern::Below(one), HostPattern::Below(two)) => {
                        format!("w.{}", if one.len() > two.len() { one } else { two })
                    }
                };
                let length = one.segments.len().max(two.segments.len());
                let mut segments: Vec<String> = (0..length)
                    .map(|index| {
                        let literals = [one.segments.get(index), two.segments.get(index)];
                        literals.into_iter().flatten().find_map(|segment| match segment {
                            Segment::Literal(literal) => Some(literal.clone()),
                            Segment::Any => None,
                        })
                    })
                    .map(|literal| literal.unwrap_or_else(|| "w".to_owned()))
                    .collect();
                if segments.is_empty() {
                    segments.push(String::new());
                }
                let url = Url::parse(&format!("https://{host}/{}", segments.join("/"))).unwrap();
                prop_assert!(one.matches(&url) && two.matches(&url), "{} and {}, but not {}", one, two, url);
            }
        }

        #[test]
        fn the_normal_form_reads_back(pattern in a_pattern()) {
            let pattern = UrlPattern::parse(&pattern).unwrap();
            prop_assert_eq!(UrlPattern::parse(&pattern.to_string()), Ok(pattern));
        }

        #[test]
        fn the_exact_pattern_of_a_url_matches_it(path in a_path(), port in 1_u16..) {
            let url = Url::parse(&format!("http://x.example:{port}{path}?q")).unwrap();
            let pattern = UrlPattern::exactly(&url).unwrap();
            prop_assert!(pattern.matches(&url));
            prop_assert_eq!(UrlPattern::parse(&pattern.to_string()), Ok(pattern));
        }

        #[test]
        fn no_text_panics(text in ".{0,60}", tail in "[a-z0-9%./*;:@\\[\\]\\\\?#]{0,30}") {
            for text in [text.clone(), format!("https://{tail}"), format!("http://a.example/{tail}"), tail] {
                let pattern = UrlPattern::parse(&text);
                if let Ok(url) = Url::parse(&text) {
                    let everything = UrlPattern::parse("https://*.example/**").unwrap();
                    everything.matches(&url);
                    if let (Ok(pattern), Ok(exact)) = (pattern, UrlPattern::exactly(&url)) {
                        prop_assert!(exact.matches(&url));
                        prop_assert!(!pattern.matches(&url) || pattern.overlaps(&exact));
                    }
                }
            }
        }
    }
}

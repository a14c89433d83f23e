//! The three parts of an absolute URL that `wasi:http` wants apart. What each may contain is the host's to judge.

/// An absolute `http` or `https` URL, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Url<'a> {
    pub scheme: &'a str,
    pub authority: &'a str,
    pub path_with_query: String,
}

impl<'a> Url<'a> {
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
            .ok_or_else(|| format!("`{text}` is not an http or https URL"))?;
        // A fragment never leaves the client.
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.is_empty() {
            return Err(format!("`{text}` names no host"));
        }
        let path_with_query = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { scheme, authority, path_with_query })
    }
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[track_caller]
    fn check(text: &str, expected: Result<(&str, &str, &str), &str>) {
        let found = Url::parse(text).map(|url| (url.scheme, url.authority, url.path_with_query));
        let expected = expected.map(|(scheme, authority, path)| (scheme, authority, path.to_owned()));
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn urls_are_taken_apart() {
        check("http://127.0.0.1:80/v1/a?b=c", Ok(("http", "127.0.0.1:80", "/v1/a?b=c")));
        check("https://api.example", Ok(("https", "api.example", "/")));
        check("https://api.example?q=/", Ok(("https", "api.example", "/?q=/")));
        check("https://[::1]:8080/x#part", Ok(("https", "[::1]:8080", "/x")));
    }

    #[test]
    fn what_is_no_url_is_named() {
        check("api.example/x", Err("`api.example/x` is not an http or https URL"));
        check("ftp://api.example", Err("`ftp://api.example` is not an http or https URL"));
        check("http:///x", Err("`http:///x` names no host"));
    }
}

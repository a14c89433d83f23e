//! CSV as RFC 4180 has it, read strictly: quoted fields, doubled quotes, line breaks inside quotes, CRLF or LF.
//! Knows nothing of invoices. Every field remembers where it began, so that whoever judges its content can point at it.

/// A place in the text: both counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub text: String,
    pub place: Place,
}

pub type Record = Vec<Field>;

/// Every record of `text`, the header too. Empty lines are skipped; a byte order mark is not part of the first field.
pub fn parse(text: &str) -> Result<Vec<Record>, String> {
    let mut reader = Reader::new(text.strip_prefix('\u{feff}').unwrap_or(text));
    let mut records = Vec::new();
    while reader.peek().is_some() {
        if reader.take_line_end() {
            continue;
        }
        records.push(reader.record()?);
    }
    Ok(records)
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    place: Place,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.chars().peekable(), place: Place { line: 1, column: 1 } }
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn take(&mut self) -> Option<char> {
        let taken = self.rest.next()?;
        if taken == '\n' {
            self.place = Place { line: self.place.line + 1, column: 1 };
        } else {
            self.place.column += 1;
        }
        Some(taken)
    }

    /// Whether there was one: `\n`, `\r\n`, or a lone `\r` before the end of the text.
    fn take_line_end(&mut self) -> bool {
        match self.peek() {
            Some('\n') => self.take().is_some(),
            Some('\r') => {
                self.take();
                if self.peek() == Some('\n') {
                    self.take();
                }
                true
            }
            _ => false,
        }
    }

    fn record(&mut self) -> Result<Record, String> {
        let mut record = vec![self.field()?];
        loop {
            match self.peek() {
                Some(',') => {
                    self.take();
                    record.push(self.field()?);
                }
                None => return Ok(record),
                Some(_) if self.take_line_end() => return Ok(record),
                // Only a quoted field ends before a comma or a line end.
                Some(other) => return Err(format!("{}: `{other}` after a closing quote", self.place)),
            }
        }
    }

    fn field(&mut self) -> Result<Field, String> {
        let place = self.place;
        let text = if self.peek() == Some('"') { self.quoted()? } else { self.bare()? };
        Ok(Field { text, place })
    }

    fn bare(&mut self) -> Result<String, String> {
        let mut text = String::new();
        while let Some(next) = self.peek() {
            match next {
                ',' | '\n' | '\r' => break,
                '"' => return Err(format!("{}: a quote inside a field that does not begin with one", self.place)),
                _ => text.extend(self.take()),
            }
        }
        Ok(text)
    }

    fn quoted(&mut self) -> Result<String, String> {
        let opened = self.place;
        self.take();
        let mut text = String::new();
        loop {
            match self.take() {
                Some('"') if self.peek() == Some('"') => text.extend(self.take()),
                Some('"') => return Ok(text),
                Some(other) => text.push(other),
                None => return Err(format!("{opened}: this quote is never closed")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[track_caller]
    fn check(text: &str, expected: Result<&[&[&str]], &str>) {
        let texts = |record: Vec<super::Field>| record.into_iter().map(|field| field.text).collect::<Vec<_>>();
        let found = parse(text).map(|records| records.into_iter().map(texts).collect::<Vec<_>>());
        let expected = expected
            .map(|records| records.iter().map(|record| record.iter().map(|text| text.to_string()).collect()).collect());
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn fields_and_line_ends() {
        check("", Ok(&[]));
        check("\n\r\n", Ok(&[]));
        check("a,b\nc,d", Ok(&[&["a", "b"], &["c", "d"]]));
        check("a,b\r\nc,d\r\n", Ok(&[&["a", "b"], &["c", "d"]]));
        check("a,,\n", Ok(&[&["a", "", ""]]));
        check(",", Ok(&[&["", ""]]));
        check("\u{feff}a", Ok(&[&["a"]]));
    }

    #[test]
    fn quotes() {
        check("\"a, b\",c", Ok(&[&["a, b", "c"]]));
        check("\"say \"\"yes\"\"\"", Ok(&[&["say \"yes\""]]));
        check("\"two\r\nlines\",x", Ok(&[&["two\r\nlines", "x"]]));
        check("\"\",x", Ok(&[&["", "x"]]));
    }

    #[test]
    fn errors_say_where() {
        check("a\nb,\"c", Err("line 2, column 3: this quote is never closed"));
        check("a,b\"c", Err("line 1, column 4: a quote inside a field that does not begin with one"));
        check("\"a\"b,c", Err("line 1, column 4: `b` after a closing quote"));
        check("\"two\nlines\" ,x", Err("line 2, column 7: ` ` after a closing quote"));
    }

    #[test]
    fn fields_know_their_place() {
        let records = parse("ä,\"b\nc\",d\ne,f").unwrap();
        let places: Vec<_> = records.iter().flatten().map(|field| (field.place.line, field.place.column)).collect();
        assert_eq!(places, [(1, 1), (1, 3), (2, 4), (3, 1), (3, 3)]);
    }
}

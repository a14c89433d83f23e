//! Text for people: tables, excerpts, and nothing in it that could steer their terminal.
//!
//! Much of what is shown was written by a guest or a provider: log lines, messages, outputs. It is shown as text.

use std::borrow::Cow;
use std::io::Write;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

/// How many characters of a value a table shows.
pub const EXCERPT_CHARS_MAX: usize = 72;

/// Writes to stdout. A reader that has gone away (`| head`) is no error.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes to stderr, if anybody reads it.
pub fn eprint(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The text with everything escaped that a terminal would obey, or that would show it in another order.
pub fn clean(text: &str) -> Cow<'_, str> {
    let is_obeyed = |char: char| {
        char.is_control() && !matches!(char, '\n' | '\t')
            || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len());
    for char in text.chars() {
        match is_obeyed(char) {
            true => cleaned.extend(char.escape_default()),
            false => cleaned.push(char),
        }
    }
    Cow::Owned(cleaned)
}

/// The text on one line, cut to [`EXCERPT_CHARS_MAX`] characters.
pub fn excerpt(text: &str) -> String {
    excerpt_to(text, EXCERPT_CHARS_MAX)
}

/// The text on one line, cut to so many characters.
pub fn excerpt_to(text: &str, chars_max: usize) -> String {
    let line: String = text.chars().map(|char| if char.is_whitespace() { ' ' } else { char }).collect();
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The text with every line set in by two spaces.
pub fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// A table without borders; the empty text where it has no rows.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header.iter().map(|name| name.to_uppercase()).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row.iter().map(|cell| clean(cell).into_owned()).collect::<Vec<_>>());
    }
    if table.is_empty() {
        return String::new();
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}

/// Names and values, one a line. An absent value has no line.
pub fn fields(rows: &[(&str, Option<String>)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        if let Some(value) = value {
            text.push_str(&format!("{name:width$}  {}\n", clean(value)));
        }
    }
    text
}

/// A part of a longer text under its heading; the empty text where the part is.
pub fn section(heading: &str, body: &str) -> String {
    if body.is_empty() { String::new() } else { format!("\n{heading}\n{}", indented(body)) }
}

/// A size, rounded for people.
pub fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        _ if bytes >= 1_048_576.0 => format!("{:.1} MiB", bytes / 1_048_576.0),
        _ if bytes >= 1024.0 => format!("{:.1} KiB", bytes / 1024.0),
        _ => format!("{bytes} B"),
    }
}

/// A count with its noun.
pub fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(clean("plain ä\n\ttext"), "plain ä\n\ttext");
        assert_eq!(clean("\u{1b}[2Jgone\r\u{7}"), "\\u{1b}[2Jgone\\r\\u{7}");
        assert_eq!(clean("\u{9b}31m"), "\\u{9b}31m");
        assert_eq!(clean("invoice\u{202e}fdp.exe"), "invoice\\u{202e}fdp.exe");
        assert!(!table(&["a"], [vec!["\u{1b}[31m".to_owned()]]).contains('\u{1b}'));
    }

    #[test]
    fn an_excerpt_is_one_line_and_cut_between_characters() {
        assert_eq!(excerpt("a\nb"), "a b");
        let long = excerpt(&"ä".repeat(EXCERPT_CHARS_MAX + 1));
        assert_eq!(long.chars().count(), EXCERPT_CHARS_MAX + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn a_table_has_no_borders_and_no_trailing_space() {
        let text = table(&["step", "state"], [vec!["triage".into(), "completed".into()], vec!["a".into(), "b".into()]]);
        assert_eq!(text, "STEP    STATE\ntriage  completed\na       b\n");
        assert_eq!(table(&["step"], []), "");
    }
}

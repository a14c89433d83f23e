//! Sizes and times as people write them: `64MiB`, `30s`, `1h30m`.
//!
//! Reading is strict, since these texts are limits: a number without a unit, a fraction, or a unit that means different
//! things to different people (`M`, `K`, `y`) is an error and not a guess. Nothing here knows what a size or time is
//! for.

use std::time::Duration;

/// The largest size that is read: what a signed 64-bit integer holds.
pub const SIZE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// The longest time that is read: a hundred years of 365 days. Adding it to a clock cannot overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// Largest first.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

/// In nanoseconds, largest first.
const DURATION_UNITS: &[(&str, u128)] = &[
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Why a text is not a size or a time. Its message quotes the text and says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

/// Reads a size in bytes: a whole number and one unit (`B`, `kB`, `KiB`, `MB`, `MiB`, `GB`, `GiB`, `TB` or `TiB`), with
/// nothing between them. Zero is a size.
///
/// # Errors
/// Where the text is anything else, or more than [`SIZE_BYTES_MAX`].
///
/// ```
/// use tollgate::policy::units::parse_size;
///
/// assert_eq!(parse_size("64MiB"), Ok(64 * 1024 * 1024));
/// assert!(parse_size("64").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let wrong =
        || UnitError(format!("{text:?} is not a size: write a whole number and its unit, such as 64MiB or 500kB"));
    let (number, unit) = split_number(text).ok_or_else(wrong)?;
    if unit.is_empty() {
        return Err(UnitError(format!("{text:?} has no unit: write it as 64MiB, 64KiB or 64B")));
    }
    let (_, bytes) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*bytes))
        .filter(|size| *size <= SIZE_BYTES_MAX)
        .ok_or_else(|| UnitError(format!("{text:?} is too large: the largest size is {SIZE_BYTES_MAX}B")))
}

/// Reads a time: whole numbers, each with its unit (`d`, `h`, `m`, `s`, `ms`, `us` or `ns`), the larger units first and
/// each at most once, with nothing between them. A day has 24 hours. Zero is a time.
///
/// # Errors
/// Where the text is anything else, or more than [`DURATION_MAX`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::policy::units::parse_duration;
///
/// assert_eq!(parse_duration("1h2m3s"), Ok(Duration::from_secs(3723)));
/// assert!(parse_duration("30").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let wrong = || {
        UnitError(format!(
            "{text:?} is not a time: write whole numbers with units, larger ones first, such as 30s, 1h30m or 500ms"
        ))
    };
    let too_long = || UnitError(format!("{text:?} is too long: the longest time is {}", format_duration(DURATION_MAX)));
    let mut nanos: u128 = 0;
    let mut units = DURATION_UNITS;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let (number, after) = split_number(rest).ok_or_else(wrong)?;
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        if unit.is_empty() {
            return Err(UnitError(format!("{text:?} has no unit: write it as 30s, 30m or 500ms")));
        }
        let index = units.iter().position(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number = u128::from(number.parse::<u64>().map_err(|_| too_long())?);
        nanos += number * units[index].1; // at most 7 terms, each below 2^64 · 2^47
        units = &units[index + 1..];
        rest = after;
    }
    if nanos > DURATION_MAX.as_nanos() {
        return Err(too_long());
    }
    let nanos = u64::try_from(nanos).map_err(|_| too_long())?;
    Ok(Duration::from_nanos(nanos))
}

/// A size as [`parse_size`] reads it, in the largest binary unit that divides it: `64MiB`, `1000B`.
pub fn format_size(bytes: u64) -> String {
    let fits =
        |(name, unit): &&(&str, u64)| bytes != 0 && bytes.is_multiple_of(*unit) && (name.contains('i') || *unit == 1);
    match SIZE_UNITS.iter().find(fits) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => "0B".to_owned(),
    }
}

/// A time as [`parse_duration`] reads it, exactly: `1h30m`, `500ms`.
pub fn format_duration(duration: Duration) -> String {
    let mut nanos = duration.as_nanos();
    let mut text = String::new();
    for (name, unit) in DURATION_UNITS {
        if nanos >= *unit {
            text.push_str(&format!("{}{name}", nanos / unit));
            nanos %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// The digits at the start, and what follows them; `None` where there are none.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check_size(text: &str, expected: Result<u64, &str>) {
        match (parse_size(text), expected) {
            (Ok(size), Ok(expected)) => assert_eq!(size, expected, "{text:?}"),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{text:?}: {error}"),
            (found, _) => panic!("{text:?} gave {found:?}"),
        }
    }

    #[test]
    fn a_size_has_a_unit() {
        check_size("0B", Ok(0));
        check_size("1B", Ok(1));
        check_size("500kB", Ok(500_000));
        check_size("64KiB", Ok(65_536));
        check_size("1MB", Ok(1_000_000));
        check_size("64MiB", Ok(67_108_864));
        check_size("2GB", Ok(2_000_000_000));
        check_size("4GiB", Ok(4_294_967_296));
        check_size("1TB", Ok(1_000_000_000_000));
        check_size("1TiB", Ok(1_099_511_627_776));
        check_size("9223372036854775807B", Ok(SIZE_BYTES_MAX));
        check_size("64", Err("has no unit"));
        for text in [
            "", "MiB", "64M", "64K", "64mib", "64mb", "64KB", "1.5GiB", "-1B", "+1B", "64 MiB", " 64MiB", "64MiB ",
            "1e3B", "6٤B",
        ] {
            check_size(text, Err("is not a size"));
        }
        for text in ["9223372036854775808B", "18446744073709551616B", "99999999TiB", "9999999999999999999999999999B"] {
            check_size(text, Err("too large"));
        }
    }

    #[track_caller]
    fn check_duration(text: &str, expected: Result<u64, &str>) {
        match (parse_duration(text), expected) {
            (Ok(duration), Ok(millis)) => assert_eq!(duration, Duration::from_millis(millis), "{text:?}"),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{text:?}: {error}"),
            (found, _) => panic!("{text:?} gave {found:?}"),
        }
    }

    #[test]
    fn a_time_has_units() {
        check_duration("0s", Ok(0));
        check_duration("500ms", Ok(500));
        check_duration("30s", Ok(30_000));
        check_duration("5m", Ok(300_000));
        check_duration("1h2m3s", Ok(3_723_000));
        check_duration("1h30m", Ok(5_400_000));
        check_duration("90m", Ok(5_400_000));
        check_duration("14d", Ok(14 * 86_400_000));
        check_duration("36500d", Ok(36_500 * 86_400_000));
        check_duration("1000us", Ok(1));
        check_duration("1000000ns", Ok(1));
        check_duration("30", Err("has no unit"));
        check_duration("1m30", Err("has no unit"));
        for text in [
            "", "s", "1.5s", "-1s", "+1s", "1 s", "1h 2m", "1s ", "1M", "1S", "1y", "1w", "1min", "1s1s", "1s1h",
            "1sm", "1µs",
        ] {
            check_duration(text, Err("is not a time"));
        }
        for text in ["36501d", "36500d1ns", "18446744073709551615d", "99999999999999999999999999s"] {
            check_duration(text, Err("too long"));
        }
    }

    #[test]
    fn they_are_shown_as_they_are_written() {
        for (bytes, text) in [(0, "0B"), (1000, "1000B"), (65_536, "64KiB"), (1 << 20, "1MiB"), (5 << 40, "5TiB")] {
            assert_eq!(format_size(bytes), text);
        }
        for (millis, text) in [(0, "0s"), (500, "500ms"), (30_000, "30s"), (5_400_000, "1h30m"), (86_400_000, "1d")] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(bytes in 0..=SIZE_BYTES_MAX, nanos in any::<u64>()) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
            let duration = Duration::from_nanos(nanos).min(DURATION_MAX);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in ".{0,20}", near in "[0-9]{0,30}[a-zA-Z]{0,3}[0-9]{0,3}[a-z]{0,2}") {
            for text in [text, near] {
                let _ = (parse_size(&text), parse_duration(&text));
            }
        }
    }
}

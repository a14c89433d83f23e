//! Days of the Gregorian calendar, as a count from 1970-01-01: enough to parse, compare and subtract.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    days_since_epoch: i64,
}

impl Date {
    pub fn from_days_since_epoch(days_since_epoch: i64) -> Self {
        Self { days_since_epoch }
    }

    /// `YYYY-MM-DD`, and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let is_date_shaped = text.len() == 10
            && text.bytes().enumerate().all(|(at, byte)| match at {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        if !is_date_shaped {
            return None;
        }
        let (year, month, day) = (text[..4].parse().ok()?, text[5..7].parse().ok()?, text[8..].parse().ok()?);
        let exists = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
        exists.then(|| {
            let days_before_month: i64 = (1..month).map(|earlier| days_in_month(year, earlier)).sum();
            Self::from_days_since_epoch(days_before_year(year) - days_before_year(1970) + days_before_month + day - 1)
        })
    }

    /// How many days `self` is after `earlier`; negative if it is before.
    pub fn days_since(self, earlier: Self) -> i64 {
        self.days_since_epoch - earlier.days_since_epoch
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Counted from a fixed day far back, so only differences mean something.
fn days_before_year(year: i64) -> i64 {
    let years = year - 1;
    years * 365 + years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400)
}

#[cfg(test)]
mod tests {
    use super::Date;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(Date::parse(text), expected.map(Date::from_days_since_epoch));
    }

    #[test]
    fn dates_are_counted_in_days() {
        check("1970-01-01", Some(0));
        check("1969-12-31", Some(-1));
        check("2000-02-29", Some(11_016));
        check("2026-11-30", Some(20_787));
        check("0000-01-01", Some(-719_528));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in ["", "2026-1-1", "2026-13-01", "2026-00-01", "2026-02-29", "1900-02-29", "2026/11/30", "2026-11-00"]
        {
            check(text, None);
        }
        check("２026-11-3", None);
    }
}

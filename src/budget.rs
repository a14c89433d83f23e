//! The arithmetic of budgets: amounts, caps, charges, and what of a charge is not yet drawn.
//!
//! Everything here is a pure function of its arguments. Nothing is stored and nothing is read: whoever holds the root
//! of a run tree brings what was used so far, asks [`check`], and commits the charge itself.
//!
//! An [`Amount`] is a whole number of millionths, read from decimal text. It is never a float, not even on the way, so
//! that 0.1 and 0.2 together fit 0.3.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many micro-units make one unit.
const MICROS: i64 = 1_000_000;

/// The longest decimal text that is read, in bytes. No amount needs more, and a guest writes this text.
const TEXT_BYTES_MAX: usize = 128;

/// How many different dimensions one charge or one budget may name. A charge is stored by dimension, and a guest writes
/// it.
pub const DIMENSIONS_MAX: usize = 64;

/// The longest name of a dimension, in bytes.
pub const DIMENSION_BYTES_MAX: usize = 64;

/// A finite, non-negative decimal number, exact to a millionth.
///
/// The largest is 9223372036854.775807. `Default` is zero. As JSON it is decimal text (`"0.3"`), never a number.
///
/// ```
/// use tollgate::budget::Amount;
///
/// let sum = Amount::parse_charge("0.1")?.checked_add(Amount::parse_charge("0.2")?);
/// assert_eq!(sum, Some(Amount::parse_cap("0.3")?));
/// # Ok::<(), tollgate::budget::AmountError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i64);

/// Why a text is not an amount. Its message quotes the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// There is no text.
    #[error("an amount is missing: write a decimal number, such as 1 or 0.25")]
    Empty,
    /// It is below zero, or written with a minus sign.
    #[error("{} is negative: an amount is 0 or more", shown(.0))]
    Negative(String),
    /// It is "nan", "inf" or another spelling of these.
    #[error("{} is not a finite number", shown(.0))]
    NotFinite(String),
    /// It has an exponent. Amounts are written out, so that a person reads the same number as the program.
    #[error("{} has an exponent: write the number out, such as 1000 or 0.001", shown(.0))]
    Exponent(String),
    /// It is something else.
    #[error("{} is not an amount: write digits and at most one decimal point, such as 1 or 0.25", shown(.0))]
    Malformed(String),
    /// It has more than six decimals where only an exact number will do.
    #[error("{} is finer than a millionth", shown(.0))]
    TooFine(String),
    /// It is larger than [`Amount::MAX`], or its text is longer than 128 bytes.
    #[error("{} is too large: the largest amount is {}", shown(.0), Amount::MAX)]
    TooLarge(String),
}

#[derive(Clone, Copy)]
enum Rounding {
    Up,
    Down,
    Refused,
}

impl Amount {
    /// No amount at all.
    pub const ZERO: Amount = Amount(0);

    /// The largest amount that can be counted.
    pub const MAX: Amount = Amount(i64::MAX);

    /// Reads what something costs. Anything finer than a millionth rounds up, so that no charge is too small.
    ///
    /// # Errors
    /// Where the text is not digits with at most one decimal point between them, or is larger than [`Amount::MAX`].
    pub fn parse_charge(text: &str) -> Result<Amount, AmountError> {
        parse(text, Rounding::Up)
    }

    /// Reads how much may be spent. Anything finer than a millionth rounds down, so that no cap is too large.
    ///
    /// # Errors
    /// As for [`Amount::parse_charge`].
    pub fn parse_cap(text: &str) -> Result<Amount, AmountError> {
        parse(text, Rounding::Down)
    }

    /// The amount of so many micro-units; `None` where they are negative.
    pub const fn from_micros(micros: i64) -> Option<Amount> {
        if micros < 0 { None } else { Some(Amount(micros)) }
    }

    /// This amount in micro-units: never negative.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The sum; `None` where it is larger than [`Amount::MAX`].
    pub fn checked_add(self, other: Amount) -> Option<Amount> {
        self.0.checked_add(other.0).map(Amount)
    }

    /// The difference; `None` where it would be negative.
    pub fn checked_sub(self, other: Amount) -> Option<Amount> {
        self.0.checked_sub(other.0).and_then(Amount::from_micros)
    }
}

/// The shortest decimal text: `0.3`, `100`.
impl fmt::Display for Amount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / MICROS, self.0 % MICROS);
        if fraction == 0 {
            return formatter.pad(&whole.to_string());
        }
        formatter.pad(format!("{whole}.{fraction:06}").trim_end_matches('0'))
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Takes decimal text that is exact to a millionth: a stored amount was rounded before it was stored, so nothing is
/// rounded here.
impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        parse(&text, Rounding::Refused).map_err(serde::de::Error::custom)
    }
}

/// How much of one dimension something costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeItem {
    /// What is counted: `emails`, `usd`.
    pub dimension: String,
    /// How much of it.
    pub amount: Amount,
}

/// Why a charge or a budget cannot be read. Its message names the label that the caller gave, and the dimension.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// A dimension without a name.
    #[error("{label}: a dimension has no name")]
    Nameless {
        /// What was being read.
        label: String,
    },
    /// A name that does not follow the rules.
    #[error(
        "{label}: {} does not name a dimension: write 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`",
        shown(.dimension)
    )]
    Name {
        /// What was being read.
        label: String,
        /// The name, as it was given.
        dimension: String,
    },
    /// The amount is none.
    #[error("{label}, dimension {dimension}: {problem}")]
    Amount {
        /// What was being read.
        label: String,
        /// Whose amount it is.
        dimension: String,
        /// What is wrong with it.
        problem: AmountError,
    },
    /// The amounts of one dimension add up to more than [`Amount::MAX`].
    #[error("{label}, dimension {dimension}: the sum is too large: the largest amount is {}", Amount::MAX)]
    SumTooLarge {
        /// What was being read.
        label: String,
        /// Whose amounts they are.
        dimension: String,
    },
    /// Two caps for one dimension: which of them holds cannot be known.
    #[error("{label}, dimension {dimension}: it has two caps; keep one")]
    CapTwice {
        /// What was being read.
        label: String,
        /// What is capped twice.
        dimension: String,
    },
    /// More than [`DIMENSIONS_MAX`] dimensions.
    #[error("{label}: more than {DIMENSIONS_MAX} dimensions")]
    TooMany {
        /// What was being read.
        label: String,
    },
}

/// Reads a charge: what a plan says it consumes, or what a meter takes for one request.
///
/// `items` are pairs of a dimension and decimal text. Each rounds up to a micro-unit; a dimension that is named twice
/// is summed, and keeps the place of its first mention. `label` says in errors what was being read, such as `plan of
/// mail/send`.
///
/// # Errors
/// The first item that is not a valid name with a valid amount, or whose sum cannot be counted.
///
/// ```
/// use tollgate::budget::sum;
///
/// let charge = sum("plan of mail/send", [("emails", "1"), ("usd", "0.1"), ("emails", "2")])?;
/// assert_eq!(charge.len(), 2);
/// assert_eq!(charge[0].amount.to_string(), "3");
/// # Ok::<(), tollgate::budget::BudgetError>(())
/// ```
pub fn sum<D, T>(label: &str, items: impl IntoIterator<Item = (D, T)>) -> Result<Vec<ChargeItem>, BudgetError>
where
    D: Into<String>,
    T: AsRef<str>,
{
    let mut charge: Vec<ChargeItem> = Vec::new();
    for (dimension, text) in items {
        let dimension = named(label, dimension.into())?;
        let amount = match Amount::parse_charge(text.as_ref()) {
            Ok(amount) => amount,
            Err(problem) => return Err(BudgetError::Amount { label: label.to_owned(), dimension, problem }),
        };
        match charge.iter().position(|item| item.dimension == dimension) {
            Some(index) => match charge[index].amount.checked_add(amount) {
                Some(total) => charge[index].amount = total,
                None => return Err(BudgetError::SumTooLarge { label: label.to_owned(), dimension }),
            },
            None if charge.len() == DIMENSIONS_MAX => return Err(BudgetError::TooMany { label: label.to_owned() }),
            None => charge.push(ChargeItem { dimension, amount }),
        }
    }
    Ok(charge)
}

/// Reads a budget: how much of each dimension may be spent. Each cap rounds down to a micro-unit.
///
/// `label` says in errors what was being read, such as `budget of billing/dunning` or `--budget`.
///
/// # Errors
/// The first item that is not a valid name with a valid amount, or the first dimension that has two caps: unlike a
/// charge, two caps are not summed, since whoever wrote both meant one of them.
pub fn caps<D, T>(label: &str, items: impl IntoIterator<Item = (D, T)>) -> Result<BTreeMap<String, Amount>, BudgetError>
where
    D: Into<String>,
    T: AsRef<str>,
{
    let mut caps = BTreeMap::new();
    for (dimension, text) in items {
        let dimension = named(label, dimension.into())?;
        let cap = match Amount::parse_cap(text.as_ref()) {
            Ok(cap) => cap,
            Err(problem) => return Err(BudgetError::Amount { label: label.to_owned(), dimension, problem }),
        };
        if caps.contains_key(&dimension) {
            return Err(BudgetError::CapTwice { label: label.to_owned(), dimension });
        }
        if caps.len() == DIMENSIONS_MAX {
            return Err(BudgetError::TooMany { label: label.to_owned() });
        }
        caps.insert(dimension, cap);
    }
    Ok(caps)
}

/// A charge that does not fit. Its message states all four; as JSON it is the `details` of `WORKFLOW_BUDGET_EXCEEDED`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("the budget for {dimension} is exceeded: limit {limit}, used {used}, requested {requested}")]
pub struct Exceeded {
    /// Which dimension does not fit.
    pub dimension: String,
    /// Its cap; [`Amount::MAX`] where it has none and the count itself would run out of range.
    pub limit: Amount,
    /// How much of it was used before.
    pub used: Amount,
    /// How much this charge asks for.
    pub requested: Amount,
}

/// Whether a whole charge fits what is left: equal to the cap fits, and a dimension without a cap always does, as long
/// as it can be counted.
///
/// `used` is what the root of the run tree was charged so far; a dimension that it does not have was not used.
///
/// # Errors
/// The first dimension, in the order of the charge, that goes over its cap. Then nothing of the charge may be applied.
pub fn check(
    caps: &BTreeMap<String, Amount>,
    used: &BTreeMap<String, Amount>,
    charge: &[ChargeItem],
) -> Result<(), Exceeded> {
    for item in charge {
        let limit = caps.get(&item.dimension).copied().unwrap_or(Amount::MAX);
        let used = used.get(&item.dimension).copied().unwrap_or_default();
        // A charge from `sum` names each dimension once; one built by hand is still charged as a whole.
        let requested = total_of(charge, &item.dimension);
        if used.checked_add(requested).is_none_or(|total| total > limit) {
            return Err(Exceeded { dimension: item.dimension.clone(), limit, used, requested });
        }
    }
    Ok(())
}

/// What of a charge the metered requests of one attempt have not drawn yet.
///
/// A plan says what `run` will consume, and that is charged before `run` is called. Each effectful request to a metered
/// endpoint draws its meter from here, so that a guest cannot do more than it said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowance {
    remaining: BTreeMap<String, Amount>,
}

/// A draw that is larger than what is left. Nothing was drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("the allowance for {dimension} is used up: {remaining} left of what the plan charged, {requested} needed")]
pub struct Shortfall {
    /// Which dimension does not suffice.
    pub dimension: String,
    /// How much of it is left; zero also where the plan did not name it.
    pub remaining: Amount,
    /// How much the request needs.
    pub requested: Amount,
}

impl Allowance {
    /// All of a charge, nothing of it drawn.
    pub fn of(charge: &[ChargeItem]) -> Allowance {
        let mut allowance = Allowance::default();
        allowance.put_back(charge);
        allowance
    }

    /// How much of `dimension` is left.
    pub fn remaining(&self, dimension: &str) -> Amount {
        self.remaining.get(dimension).copied().unwrap_or_default()
    }

    /// Draws a whole meter, or nothing.
    ///
    /// # Errors
    /// The first dimension, in the order of the meter, of which too little is left.
    pub fn draw(&mut self, meter: &[ChargeItem]) -> Result<(), Shortfall> {
        let mut left = BTreeMap::new();
        for item in meter {
            let remaining = self.remaining(&item.dimension);
            let requested = total_of(meter, &item.dimension);
            match remaining.checked_sub(requested) {
                Some(rest) => left.insert(item.dimension.clone(), rest),
                None => return Err(Shortfall { dimension: item.dimension.clone(), remaining, requested }),
            };
        }
        self.remaining.extend(left);
        Ok(())
    }

    /// Puts back what was drawn for a request that did not leave. A sum past [`Amount::MAX`] stays there, which allows
    /// less.
    pub fn put_back(&mut self, drawn: &[ChargeItem]) {
        for item in drawn {
            let remaining = self.remaining.entry(item.dimension.clone()).or_default();
            *remaining = remaining.checked_add(item.amount).unwrap_or(Amount::MAX);
        }
    }
}

/// Whether `name` can name a dimension: 1 to 64 of `A-Z`, `a-z`, `0-9`, `_`, `.` and `-`.
pub fn is_dimension(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=DIMENSION_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

fn named(label: &str, dimension: String) -> Result<String, BudgetError> {
    if dimension.is_empty() {
        return Err(BudgetError::Nameless { label: label.to_owned() });
    }
    if !is_dimension(&dimension) {
        return Err(BudgetError::Name { label: label.to_owned(), dimension });
    }
    Ok(dimension)
}

/// Saturates: what is past the range is over every cap and every allowance anyway.
fn total_of(items: &[ChargeItem], dimension: &str) -> Amount {
    items
        .iter()
        .filter(|item| item.dimension == dimension)
        .fold(Amount::ZERO, |total, item| total.checked_add(item.amount).unwrap_or(Amount::MAX))
}

fn parse(text: &str, rounding: Rounding) -> Result<Amount, AmountError> {
    if text.is_empty() {
        return Err(AmountError::Empty);
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(AmountError::TooLarge(text.to_owned()));
    }
    // Every spelling that TOML, YAML, JSON dialects and Rust have for these.
    let word = text.trim_start_matches(['+', '-']).trim_start_matches('.').to_ascii_lowercase();
    if matches!(word.as_str(), "nan" | "inf" | "infinity") {
        return Err(AmountError::NotFinite(text.to_owned()));
    }
    if text.starts_with('-') {
        return Err(AmountError::Negative(text.to_owned()));
    }
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    if !is_digits(whole) || fraction.is_some_and(|fraction| !is_digits(fraction)) {
        let exponent = text.starts_with(|first: char| first.is_ascii_digit())
            && text.contains(['e', 'E'])
            && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
        return Err(match exponent {
            true => AmountError::Exponent(text.to_owned()),
            false => AmountError::Malformed(text.to_owned()),
        });
    }
    micros(whole, fraction.unwrap_or_default(), rounding, text)
}

fn micros(whole: &str, fraction: &str, rounding: Rounding, text: &str) -> Result<Amount, AmountError> {
    let (kept, beyond) = fraction.split_at(fraction.len().min(6));
    let digits = whole.bytes().chain(kept.bytes().chain(std::iter::repeat(b'0')).take(6));
    let exact = digits.map(|digit| i64::from(digit - b'0')).try_fold(0_i64, |value, digit| {
        let value = value.checked_mul(10)?;
        value.checked_add(digit)
    });
    let value = match (rounding, beyond.bytes().any(|digit| digit != b'0')) {
        (_, false) | (Rounding::Down, true) => exact,
        (Rounding::Up, true) => exact.and_then(|value| value.checked_add(1)),
        (Rounding::Refused, true) => return Err(AmountError::TooFine(text.to_owned())),
    };
    value.map(Amount).ok_or_else(|| AmountError::TooLarge(text.to_owned()))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A guest's text as an error may show it: quoted, control characters escaped, cut to a readable length.
fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, Amount> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), Amount::parse_cap(text).unwrap())).collect()
    }

    fn charge(pairs: &[(&str, &str)]) -> Vec<ChargeItem> {
        sum("test", pairs.iter().copied()).unwrap()
    }

    #[track_caller]
    fn check_rounding(text: &str, as_charge: i64, as_cap: i64) {
        assert_eq!(Amount::parse_charge(text).map(Amount::micros), Ok(as_charge), "{text:?} as a charge");
        assert_eq!(Amount::parse_cap(text).map(Amount::micros), Ok(as_cap), "{text:?} as a cap");
    }

    #[test]
    fn b1_a_charge_rounds_up_and_a_cap_down() {
        check_rounding("0", 0, 0);
        check_rounding("0.0", 0, 0);
        check_rounding("1", 1_000_000, 1_000_000);
        check_rounding("007", 7_000_000, 7_000_000);
        check_rounding("0.1", 100_000, 100_000);
        check_rounding("0.000001", 1, 1);
        check_rounding("0.0000001", 1, 0);
        check_rounding("0.0000009", 1, 0);
        check_rounding("0.0000000000000000000000000000000000000001", 1, 0);
        check_rounding("1.2345678", 1_234_568, 1_234_567);
        check_rounding("1.2345670000", 1_234_567, 1_234_567);
        check_rounding("9223372036854.775807", i64::MAX, i64::MAX);
        assert!(Amount::parse_charge("9223372036854.7758071").is_err(), "rounded up it no longer fits");
        assert_eq!(Amount::parse_cap("9223372036854.7758079"), Ok(Amount::MAX));
    }

    #[track_caller]
    fn check_refused(text: &str, expected: &str) {
        for error in [Amount::parse_charge(text).unwrap_err(), Amount::parse_cap(text).unwrap_err()] {
            let message = error.to_string();
            assert!(message.contains(expected), "{text:?}: {message:?} does not say {expected:?}");
            assert!(message.len() < 200, "{text:?}: an error stays readable");
            assert!(!message.contains('\0'), "{text:?}: an error can be stored");
        }
    }

    #[test]
    fn b1_what_is_no_amount_is_a_clear_error() {
        check_refused("", "missing");
        check_refused("-1", "\"-1\" is negative");
        check_refused("-0", "negative");
        check_refused("-0.0000001", "negative");
        for text in ["NaN", "nan", ".nan", "+nan", "inf", "-inf", "+Inf", ".inf", "-.INF", "Infinity", "-infinity"] {
            check_refused(text, "not a finite number");
        }
        for text in ["1e3", "1E3", "1e-7", "1.5e+3"] {
            check_refused(text, "exponent");
        }
        for text in [" 1", "1 ", "+1", ".5", "5.", "1.2.3", "1,5", "1_000", "0x10", "ten", "e", "\0", "１", "1\n", "."]
        {
            check_refused(text, "not an amount");
        }
        check_refused("9223372036854.775808", "too large");
        check_refused("99999999999999999999999999", "too large");
        check_refused(&"1".repeat(1_000_000), "too large");
    }

    #[test]
    fn b1_the_text_is_the_shortest() {
        for (micros, text) in [
            (0, "0"),
            (1, "0.000001"),
            (300_000, "0.3"),
            (100_000_000, "100"),
            (1_000_010, "1.00001"),
            (i64::MAX, "9223372036854.775807"),
        ] {
            assert_eq!(Amount::from_micros(micros).unwrap().to_string(), text);
        }
        assert_eq!(Amount::from_micros(-1), None);
    }

    #[test]
    fn b1_json_is_exact_text() {
        let amount = Amount::parse_charge("0.3").unwrap();
        assert_eq!(serde_json::to_string(&amount).unwrap(), r#""0.3""#);
        assert_eq!(serde_json::from_str::<Amount>(r#""0.3""#).unwrap(), amount);
        assert_eq!(serde_json::from_str::<Amount>(r#""0\u002e3""#).unwrap(), amount);
        for text in ["0.3", r#""0.0000001""#, r#""-1""#, r#""""#, "null"] {
            assert!(serde_json::from_str::<Amount>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn b1_a_tenth_and_two_tenths_fit_three_tenths() {
        let caps = amounts(&[("usd", "0.3")]);
        let used = amounts(&[("usd", "0.1")]);
        assert_eq!(check(&caps, &used, &charge(&[("usd", "0.2")])), Ok(()));
        assert!(check(&caps, &used, &charge(&[("usd", "0.2000001")])).is_err());
    }

    #[track_caller]
    fn check_sum(items: &[(&str, &str)], expected: Result<&[(&str, &str)], &str>) {
        let found = sum("plan of mail/send", items.iter().copied());
        match (found, expected) {
            (Ok(charge), Ok(expected)) => {
                let charge: Vec<_> = charge.iter().map(|item| (&*item.dimension, item.amount.to_string())).collect();
                let expected: Vec<_> = expected.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
                assert_eq!(charge, expected, "{items:?}");
            }
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected, "{items:?}"),
            (found, _) => panic!("{items:?} gave {found:?}"),
        }
    }

    #[test]
    fn b1_a_dimension_named_twice_is_summed_in_the_order_of_first_mention() {
        check_sum(&[], Ok(&[]));
        check_sum(&[("b", "1"), ("a", "0.1"), ("b", "0.5")], Ok(&[("b", "1.5"), ("a", "0.1")]));
        check_sum(&[("a", "0.0000001"), ("a", "0.0000001")], Ok(&[("a", "0.000002")]));
        check_sum(&[("Usd_net.v-2", "0")], Ok(&[("Usd_net.v-2", "0")]));
        check_sum(
            &[("a", "9223372036854"), ("a", "1")],
            Err("plan of mail/send, dimension a: the sum is too large: the largest amount is 9223372036854.775807"),
        );
        check_sum(&[("", "1")], Err("plan of mail/send: a dimension has no name"));
        check_sum(
            &[("e mails", "1")],
            Err("plan of mail/send: \"e mails\" does not name a dimension: \
                 write 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`"),
        );
        check_sum(
            &[("emails", "-1")],
            Err("plan of mail/send, dimension emails: \"-1\" is negative: an amount is 0 or more"),
        );
        check_sum(&[("emails", "NaN")], Err("plan of mail/send, dimension emails: \"NaN\" is not a finite number"));
        assert!(is_dimension(&"d".repeat(64)));
        assert!(!is_dimension(&"d".repeat(65)));
        let many = (0..=DIMENSIONS_MAX).map(|number| (format!("d{number}"), "1"));
        assert_eq!(sum("plan", many).unwrap_err().to_string(), "plan: more than 64 dimensions");
    }

    #[test]
    fn b1_a_budget_rounds_down_and_names_each_dimension_once() {
        assert_eq!(caps("--budget", [("usd", "0.0000019")]).unwrap(), amounts(&[("usd", "0.000001")]));
        for (items, expected) in [
            (vec![("usd", "1"), ("usd", "2")], "--budget, dimension usd: it has two caps; keep one"),
            (vec![("", "1")], "--budget: a dimension has no name"),
            (vec![("usd", "inf")], "--budget, dimension usd: \"inf\" is not a finite number"),
        ] {
            assert_eq!(caps("--budget", items).unwrap_err().to_string(), expected);
        }
        let many = (0..=DIMENSIONS_MAX).map(|number| (format!("d{number}"), "1"));
        assert_eq!(caps("--budget", many).unwrap_err().to_string(), "--budget: more than 64 dimensions");
    }

    #[track_caller]
    fn check_fit(caps: &[(&str, &str)], used: &[(&str, &str)], items: &[(&str, &str)], expected: Option<&str>) {
        let found = check(&amounts(caps), &amounts(used), &charge(items)).map_err(|exceeded| exceeded.to_string());
        assert_eq!(found.err().as_deref(), expected, "{items:?} after {used:?} of {caps:?}");
    }

    // R6: all dimensions or none, equal fits, the first one over the cap in the order of the charge.
    #[test]
    fn b1_equal_to_the_cap_fits_and_the_first_over_it_is_reported() {
        check_fit(&[("emails", "100")], &[("emails", "99")], &[("emails", "1")], None);
        check_fit(
            &[("emails", "100")],
            &[("emails", "99")],
            &[("emails", "2")],
            Some("the budget for emails is exceeded: limit 100, used 99, requested 2"),
        );
        check_fit(&[("emails", "0")], &[], &[("emails", "0")], None);
        check_fit(
            &[("emails", "0")],
            &[],
            &[("emails", "0.000001")],
            Some("the budget for emails is exceeded: limit 0, used 0, requested 0.000001"),
        );
        check_fit(
            &[("a", "1"), ("b", "1")],
            &[],
            &[("c", "5"), ("b", "2"), ("a", "2")],
            Some("the budget for b is exceeded: limit 1, used 0, requested 2"),
        );
        // A cap lowered below what is used refuses only what asks for more of it.
        check_fit(&[("a", "1")], &[("a", "5")], &[("b", "1")], None);
    }

    #[test]
    fn b2_a_dimension_without_a_cap_fits_as_long_as_it_can_be_counted() {
        check_fit(&[("usd", "1")], &[("emails", "1000000")], &[("emails", "1000000")], None);
        check_fit(
            &[],
            &[("emails", "9223372036854")],
            &[("emails", "1")],
            Some("the budget for emails is exceeded: limit 9223372036854.775807, used 9223372036854, requested 1"),
        );
    }

    #[test]
    fn b1_a_charge_built_by_hand_is_checked_as_a_whole() {
        let one = ChargeItem { dimension: "usd".to_owned(), amount: Amount::parse_charge("1").unwrap() };
        let exceeded = check(&amounts(&[("usd", "1")]), &BTreeMap::new(), &[one.clone(), one.clone()]).unwrap_err();
        assert_eq!(exceeded.requested.to_string(), "2");
        assert_eq!(
            serde_json::to_string(&exceeded).unwrap(),
            r#"{"dimension":"usd","limit":"1","used":"0","requested":"2"}"#
        );
        assert!(Allowance::of(std::slice::from_ref(&one)).draw(&[one.clone(), one]).is_err());
    }

    #[test]
    fn b6_a_meter_draws_all_or_nothing_from_what_the_plan_charged() {
        let mut allowance = Allowance::of(&charge(&[("emails", "2"), ("usd", "0.3")]));
        let meter = charge(&[("emails", "1"), ("usd", "0.2")]);
        assert_eq!(allowance.draw(&meter), Ok(()));
        let shortfall = allowance.draw(&meter).unwrap_err();
        assert_eq!(
            shortfall.to_string(),
            "the allowance for usd is used up: 0.1 left of what the plan charged, 0.2 needed"
        );
        assert_eq!(allowance.remaining("emails").to_string(), "1", "nothing was drawn of either");
        assert_eq!(allowance.draw(&charge(&[("emails", "1"), ("usd", "0.1")])), Ok(()));
        assert_eq!(allowance.remaining("emails"), Amount::ZERO);

        let unplanned = allowance.draw(&charge(&[("sms", "1")])).unwrap_err();
        assert_eq!((&*unplanned.dimension, unplanned.remaining), ("sms", Amount::ZERO));
    }

    #[test]
    fn b6_what_did_not_leave_is_put_back() {
        let mut allowance = Allowance::of(&charge(&[("emails", "1")]));
        let meter = charge(&[("emails", "1")]);
        assert_eq!(allowance.draw(&meter), Ok(()));
        assert!(allowance.draw(&meter).is_err());
        allowance.put_back(&meter);
        assert_eq!(allowance.draw(&meter), Ok(()));
        assert_eq!(allowance.remaining("emails"), Amount::ZERO);
        allowance.put_back(&charge(&[("emails", "9223372036854")]));
        allowance.put_back(&charge(&[("emails", "9223372036854")]));
        assert_eq!(allowance.remaining("emails"), Amount::MAX);
        assert_eq!(allowance.draw(&meter), Ok(()));
    }

    proptest! {
        #[test]
        fn b1_every_amount_survives_its_text(micros in 0..=i64::MAX) {
            let amount = Amount::from_micros(micros).unwrap();
            let text = amount.to_string();
            prop_assert_eq!(Amount::parse_charge(&text), Ok(amount));
            prop_assert_eq!(Amount::parse_cap(&text), Ok(amount));
            prop_assert_eq!(serde_json::from_str::<Amount>(&serde_json::to_string(&amount).unwrap()).unwrap(), amount);
        }

        #[test]
        fn b1_rounding_goes_the_safe_way_by_less_than_a_micro_unit(text in "[0-9]{1,12}(\\.[0-9]{1,20})?") {
            let (up, down) = (Amount::parse_charge(&text).unwrap(), Amount::parse_cap(&text).unwrap());
            prop_assert!(up >= down);
            prop_assert!(up.micros() - down.micros() <= 1);
        }

        #[test]
        fn b1_no_text_panics(text in ".{0,40}") {
            if let Err(error) = Amount::parse_charge(&text) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        // B3, B6: whatever is charged and drawn, in whatever order, never adds up to more than was allowed.
        #[test]
        fn b6_draws_never_add_up_to_more_than_the_charge(
            charged in 0_i64..1_000, draws in proptest::collection::vec(0_i64..200, 0..30),
        ) {
            let item = |micros| ChargeItem { dimension: "d".to_owned(), amount: Amount::from_micros(micros).unwrap() };
            let mut allowance = Allowance::of(&[item(charged)]);
            let mut drawn = 0;
            for draw in draws {
                if allowance.draw(&[item(draw)]).is_ok() {
                    drawn += draw;
                }
            }
            prop_assert!(drawn <= charged);
            prop_assert_eq!(allowance.remaining("d").micros(), charged - drawn);
        }
    }
}

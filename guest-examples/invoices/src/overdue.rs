//! What an invoice is, and which of them are overdue. Errors name the line and column of the field at fault.

use crate::csv::{self, Field, Record};
use crate::date::Date;
use serde_json::{Value, json};

const COLUMNS: [&str; 8] = ["number", "customer", "email", "amount", "currency", "issued", "due", "paid"];

/// An unpaid invoice past its due date.
#[derive(Debug)]
pub struct Overdue {
    number: String,
    customer: String,
    email: String,
    amount: String,
    currency: String,
    due: String,
    days_overdue: i64,
}

impl Overdue {
    pub fn to_json(&self) -> Value {
        json!({
            "number": self.number,
            "customer": self.customer,
            "email": self.email,
            "amount": self.amount,
            "currency": self.currency,
            "due": self.due,
            "days_overdue": self.days_overdue,
        })
    }
}

/// Every invoice of `csv` that is overdue on `today`: the most overdue first, then by number. One wrong line fails the
/// whole: a reminder that is silently never sent is worse than an error.
pub fn overdue(csv: &str, today: Date) -> Result<Vec<Overdue>, String> {
    let mut records = csv::parse(csv)?.into_iter();
    let header = Header::read(&records.next().ok_or("the CSV is empty: its first line must name the columns")?)?;
    let mut found = Vec::new();
    for record in records {
        found.extend(header.judge(&record, today)?);
    }
    found.sort_by(|a, b| b.days_overdue.cmp(&a.days_overdue).then_with(|| a.number.cmp(&b.number)));
    Ok(found)
}

/// Where each of `COLUMNS` stands in a record.
struct Header {
    width: usize,
    positions: [usize; COLUMNS.len()],
}

impl Header {
    fn read(record: &Record) -> Result<Self, String> {
        let mut positions = [0; COLUMNS.len()];
        for (position, name) in positions.iter_mut().zip(COLUMNS) {
            *position = record
                .iter()
                .position(|field| field.text.trim() == name)
                .ok_or_else(|| format!("line 1: there is no column `{name}`; needed are {}", COLUMNS.join(", ")))?;
        }
        Ok(Self { width: record.len(), positions })
    }

    /// The invoice of this line if it is overdue; `None` if it is paid or still has time.
    fn judge(&self, record: &Record, today: Date) -> Result<Option<Overdue>, String> {
        if record.len() != self.width {
            let (line, found) = (record[0].place.line, record.len());
            return Err(format!("line {line}: {found} fields where the header has {}", self.width));
        }
        let [number, customer, email, amount, currency, issued, due, paid] = self.positions.map(|at| &record[at]);
        for (name, field) in [("number", number), ("customer", customer), ("currency", currency)] {
            require(!field.text.is_empty(), name, field, "must not be empty")?;
        }
        require(is_address(&email.text), "email", email, "is not an e-mail address")?;
        require(is_amount(&amount.text), "amount", amount, "is not an amount like `1250.00`")?;
        let issued_on = date("issued", issued)?;
        let due_on = date("due", due)?;
        require(issued_on <= due_on, "due", due, "is before the invoice was issued")?;
        let is_paid = !paid.text.is_empty();
        if is_paid {
            date("paid", paid)?;
        }
        let days_overdue = today.days_since(due_on);
        Ok((!is_paid && days_overdue > 0).then(|| Overdue {
            number: number.text.clone(),
            customer: customer.text.clone(),
            email: email.text.clone(),
            amount: amount.text.clone(),
            currency: currency.text.clone(),
            due: due.text.clone(),
            days_overdue,
        }))
    }
}

fn require(condition: bool, column: &str, field: &Field, complaint: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(at(column, field, complaint)) }
}

fn date(column: &str, field: &Field) -> Result<Date, String> {
    Date::parse(&field.text).ok_or_else(|| at(column, field, "is not a date like `2026-11-30`"))
}

fn at(column: &str, field: &Field, complaint: &str) -> String {
    format!("{} ({column}): `{}` {complaint}", field.place, field.text)
}

/// Whether a mail API has a chance with it; only sending tells whether it exists.
fn is_address(text: &str) -> bool {
    let no_space = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    no_space
        && text.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty() && !host.contains('@'))
}

/// Digits, and where there is a point, digits after it. Amounts stay text from end to end: they are never floats.
fn is_amount(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{Date, overdue};

    const HEADER: &str = "number,customer,email,amount,currency,issued,due,paid\n";

    #[track_caller]
    fn check(lines: &str, expected: Result<&[(&str, i64)], &str>) {
        let today = Date::parse("2026-11-30").unwrap();
        let found = overdue(&format!("{HEADER}{lines}"), today);
        let found = found.map(|list| list.into_iter().map(|each| (each.number, each.days_overdue)).collect::<Vec<_>>());
        let expected = expected.map(|list| list.iter().map(|(number, days)| (number.to_string(), *days)).collect());
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn the_most_overdue_come_first_and_paid_ones_never() {
        check("", Ok(&[]));
        check(
            "A,Firm,a@example.com,1,EUR,2026-11-01,2026-11-29,\n\
             B,Firm,a@example.com,1.50,EUR,2026-09-01,2026-10-01,\n\
             C,Firm,a@example.com,1,EUR,2026-09-01,2026-10-01,2026-10-05\n\
             D,Firm,a@example.com,1,EUR,2026-11-01,2026-11-30,\n",
            Ok(&[("B", 60), ("A", 1)]),
        );
    }

    #[test]
    fn errors_name_line_and_column() {
        check("A,Firm\n", Err("line 2: 2 fields where the header has 8"));
        check(
            "A,\"Firm, Ltd\",a@example.com,1,EUR,2026-11-01,2026-13-29,\n",
            Err("line 2, column 46 (due): `2026-13-29` is not a date like `2026-11-30`"),
        );
        check(
            "A,Firm,a@example.com,\"1,50\",EUR,2026-11-01,2026-11-29,\n",
            Err("line 2, column 22 (amount): `1,50` is not an amount like `1250.00`"),
        );
        check(
            "A,Firm,nobody,1,EUR,2026-11-01,2026-11-29,\n",
            Err("line 2, column 8 (email): `nobody` is not an e-mail address"),
        );
    }

    #[test]
    fn a_missing_column_is_named() {
        let today = Date::from_days_since_epoch(0);
        let error = overdue("number,customer,email,amount,currency,issued,due\n", today).unwrap_err();
        assert!(error.starts_with("line 1: there is no column `paid`"), "{error}");
        assert!(overdue("", today).unwrap_err().starts_with("the CSV is empty"));
    }

    #[test]
    fn the_example_file_has_overdue_invoices() {
        let list = overdue(include_str!("../invoices.csv"), Date::parse("2026-11-30").unwrap()).unwrap();
        let numbers: Vec<_> = list.iter().map(|each| each.number.as_str()).collect();
        assert_eq!(numbers, EXAMPLE_OVERDUE);
    }

    const EXAMPLE_OVERDUE: [&str; 9] = [
        "INV-2026-0412",
        "INV-2026-0431",
        "INV-2026-0447",
        "INV-2026-0452",
        "INV-2026-0468",
        "INV-2026-0471",
        "INV-2026-0485",
        "INV-2026-0490",
        "INV-2026-0497",
    ];
}

//! What an account and a reservation are, and the arithmetic between them, in whole cents. Touches no host.

use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    balance: u64,
    /// Never more than the balance.
    reserved: u64,
    pub frozen: bool,
}

/// More was asked for than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub available: u64,
    pub requested: u64,
}

impl Account {
    pub fn open(balance: u64) -> Self {
        Self { balance, reserved: 0, frozen: false }
    }

    pub fn available(&self) -> u64 {
        self.balance.saturating_sub(self.reserved)
    }

    /// Set `amount` aside; all of what is available fits.
    pub fn reserve(&mut self, amount: u64) -> Result<(), Refused> {
        if amount > self.available() {
            return Err(Refused { available: self.available(), requested: amount });
        }
        self.reserved += amount;
        Ok(())
    }

    /// Take `amount`, which was set aside, out of the account.
    pub fn book(&mut self, amount: u64) -> Result<(), Refused> {
        if amount > self.reserved || amount > self.balance {
            return Err(Refused { available: self.reserved.min(self.balance), requested: amount });
        }
        self.reserved -= amount;
        self.balance -= amount;
        Ok(())
    }

    pub fn to_json(&self) -> Value {
        json!({ "balance": self.balance, "reserved": self.reserved, "frozen": self.frozen })
    }

    /// A document of `balance` alone is an account too: `reserved` and `frozen` have defaults.
    pub fn from_json(value: &Value) -> Option<Self> {
        let or = |key: &str, default: Value| value.get(key).cloned().unwrap_or(default);
        let balance = value["balance"].as_u64()?;
        let reserved = or("reserved", 0.into()).as_u64().filter(|reserved| *reserved <= balance)?;
        Some(Self { balance, reserved, frozen: or("frozen", false.into()).as_bool()? })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub account: String,
    pub amount: u64,
    pub booked: bool,
}

impl Reservation {
    pub fn to_json(&self) -> Value {
        json!({ "account": self.account, "amount": self.amount, "booked": self.booked })
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            account: value["account"].as_str()?.to_owned(),
            amount: value["amount"].as_u64()?,
            booked: value["booked"].as_bool()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Refused, Reservation};
    use serde_json::json;

    #[test]
    fn everything_available_can_be_reserved_and_nothing_more() {
        let mut account = Account::open(100);
        account.reserve(60).unwrap();
        assert_eq!(account.reserve(41), Err(Refused { available: 40, requested: 41 }));
        account.reserve(40).unwrap();
        assert_eq!(account.available(), 0);
        assert_eq!(account.reserve(u64::MAX), Err(Refused { available: 0, requested: u64::MAX }));
    }

    #[test]
    fn booking_takes_what_was_reserved() {
        let mut account = Account::open(100);
        account.reserve(60).unwrap();
        account.book(60).unwrap();
        assert_eq!(account.to_json(), json!({ "balance": 40, "reserved": 0, "frozen": false }));
        assert_eq!(account.book(1), Err(Refused { available: 0, requested: 1 }));
    }

    #[test]
    fn documents_are_read_strictly() {
        let account = Account::open(5);
        assert_eq!(Account::from_json(&account.to_json()), Some(account.clone()));
        assert_eq!(Account::from_json(&json!({ "balance": 5 })), Some(account));
        for damaged in [json!({}), json!({ "balance": -1 }), json!({ "balance": 1, "reserved": 2 }), json!("5")] {
            assert_eq!(Account::from_json(&damaged), None, "{damaged}");
        }
        let reservation = Reservation { account: "a".into(), amount: 1, booked: false };
        assert_eq!(Reservation::from_json(&reservation.to_json()), Some(reservation));
    }
}

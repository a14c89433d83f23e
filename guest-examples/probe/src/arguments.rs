//! The keys of one instruction, each taken once: what is left over at the end was a typing error.

use serde_json::{Map, Value};

pub struct Arguments {
    left: Map<String, Value>,
}

impl Arguments {
    pub fn of(instruction: Value) -> Result<Self, String> {
        match instruction {
            Value::Object(left) => Ok(Self { left }),
            other => Err(format!("an instruction must be an object, not {other}")),
        }
    }

    pub fn optional(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key)
    }

    pub fn value(&mut self, key: &str) -> Result<Value, String> {
        self.optional(key).ok_or_else(|| format!("`{key}` is missing"))
    }

    pub fn text(&mut self, key: &str) -> Result<String, String> {
        self.optional_text(key)?.ok_or_else(|| format!("`{key}` is missing"))
    }

    pub fn optional_text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.optional(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("`{key}` must be text")),
        }
    }

    pub fn number(&mut self, key: &str) -> Result<u64, String> {
        self.optional_number(key)?.ok_or_else(|| format!("`{key}` is missing"))
    }

    pub fn optional_number(&mut self, key: &str) -> Result<Option<u64>, String> {
        self.optional(key).map(|value| value.as_u64().ok_or_else(|| format!("`{key}` must be a count"))).transpose()
    }

    pub fn flag(&mut self, key: &str, default: bool) -> Result<bool, String> {
        match self.optional(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| format!("`{key}` must be true or false")),
        }
    }

    /// The objects of a list, absent being an empty one.
    pub fn list(&mut self, key: &str) -> Result<Vec<Arguments>, String> {
        match self.optional(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.into_iter().map(Self::of).collect(),
            Some(_) => Err(format!("`{key}` must be a list")),
        }
    }

    pub fn nothing_else(self) -> Result<(), String> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("unknown key `{key}`")),
        }
    }
}

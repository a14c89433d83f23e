//! The message that a configuration describes. Touches no host.

use serde_json::{Value, json};

#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    api: String,
    /// As written, repetitions included: each is one e-mail.
    pub to: Vec<String>,
    subject: String,
    text: Option<String>,
}

impl Message {
    /// The host has checked the configuration against the schema; an error here is a mistake in one of the two.
    pub fn parse(config: &str) -> Result<Self, String> {
        let config: Value = serde_json::from_str(config).map_err(|error| error.to_string())?;
        let text = |key: &str| config[key].as_str().map(str::to_owned);
        let to = match &config["to"] {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(list) => list.iter().map(|each| each.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        Ok(Self {
            api: text("api").ok_or("`api` must be the URL of the mail API")?.trim_end_matches('/').to_owned(),
            to: to.filter(|list| !list.is_empty()).ok_or("`to` must be an address or a list of addresses")?,
            subject: text("subject").ok_or("`subject` must be text")?,
            text: text("text"),
        })
    }

    pub fn endpoint(&self) -> String {
        format!("{}/v1/messages", self.api)
    }

    pub fn body(&self) -> String {
        let mut body = json!({ "to": self.to, "subject": self.subject });
        if let Some(text) = &self.text {
            body["text"] = text.as_str().into();
        }
        body.to_string()
    }

    /// One line, also where the recipients are many.
    pub fn summary(&self) -> String {
        match self.to.as_slice() {
            [one] => format!("send 1 e-mail to {one}"),
            [first, second] => format!("send 2 e-mails to {first} and {second}"),
            many => format!("send {} e-mails to {} and {} others", many.len(), many[0], many.len() - 1),
        }
    }

    /// What no mail API would take. Worth an issue in a dry run; the API has the last word.
    pub fn odd_addresses(&self) -> impl Iterator<Item = &str> {
        self.to.iter().map(String::as_str).filter(|address| {
            let has_both_parts =
                address.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty());
            !has_both_parts || address.contains(char::is_control)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Message;
    use serde_json::json;

    fn message(to: serde_json::Value) -> Result<Message, String> {
        Message::parse(&json!({ "api": "http://127.0.0.1:1/", "to": to, "subject": "Hello" }).to_string())
    }

    #[track_caller]
    fn check(to: serde_json::Value, summary: &str) {
        assert_eq!(message(to).unwrap().summary(), summary);
    }

    #[test]
    fn one_line_says_how_many_and_to_whom() {
        check(json!("a@example.com"), "send 1 e-mail to a@example.com");
        check(json!(["a@example.com"]), "send 1 e-mail to a@example.com");
        check(json!(["a@example.com", "b@example.com"]), "send 2 e-mails to a@example.com and b@example.com");
        check(
            json!(["a@example.com", "b@example.com", "c@example.com"]),
            "send 3 e-mails to a@example.com and 2 others",
        );
    }

    #[test]
    fn nobody_is_an_error() {
        for nobody in [json!([]), json!(null), json!([1])] {
            assert_eq!(message(nobody).unwrap_err(), "`to` must be an address or a list of addresses");
        }
    }

    #[test]
    fn the_request_is_the_same_every_time() {
        let message = message(json!("a@example.com")).unwrap();
        assert_eq!(message.endpoint(), "http://127.0.0.1:1/v1/messages");
        assert_eq!(message.body(), r#"{"subject":"Hello","to":["a@example.com"]}"#);
    }

    #[test]
    fn odd_addresses_are_found() {
        let message = message(json!(["a@example.com", "nobody", "@example.com", "a@b\n"])).unwrap();
        assert_eq!(message.odd_addresses().collect::<Vec<_>>(), ["nobody", "@example.com", "a@b\n"]);
    }
}

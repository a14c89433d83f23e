//! Deciding one request, by the number of rules that the policy has for the action.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use tollgate::capability::Phase;
use tollgate::effect::EffectClass;
use tollgate::egress::decide;
use tollgate::policy::Policy;
use url::Url;

use crate::measure::{Pair, us};

const ROUNDS: usize = 15;
const DECISIONS: u32 = 200;

pub fn measure() {
    for rules in [10, 1_000] {
        let mut text = "version = 1\n[app.mail]\nclasses = [\"ambiguous\"]\n".to_owned();
        for number in 0..rules {
            let _ = write!(
                text,
                "[[app.mail.http]]\nurl = \"https://api-{number}.example.com/v1/*/messages\"\nmethods = [\"POST\"]\n"
            );
        }
        let policy = Policy::parse("bench.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        let grant = policy.grant("mail", "send");
        // The last one that would be looked at.
        let text = format!("https://api-{}.example.com/v1/accounts/messages", rules - 1);
        let url = Url::parse(&text).expect("it is a URL");
        let mut pair = Pair::default();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            for _ in 0..DECISIONS {
                let decided = decide(
                    policy.file_name(),
                    black_box(&grant),
                    EffectClass::Ambiguous,
                    Phase::Run,
                    &http::Method::POST,
                    black_box(&url),
                );
                assert!(decided.is_ok(), "{decided:?}");
            }
            let figure = us(began.elapsed()) / f64::from(DECISIONS);
            let began = Instant::now();
            for _ in 0..DECISIONS {
                let _ = black_box(Url::parse(black_box(&text)));
            }
            pair.round(figure, us(began.elapsed()) / f64::from(DECISIONS));
        }
        pair.print(&format!("5 deciding a request at {rules} rules"), "µs", "parsing its URL", "-");
    }
}

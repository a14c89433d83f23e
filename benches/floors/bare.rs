//! What a step leaves in the store, written by nobody: the same rows, the same settings, nothing asked and nothing checked.

use std::path::Path;

use rusqlite::{Connection, ToSql, params};

/// One connection to a store's file.
pub struct Bare {
    connection: Connection,
    /// So that every row has ids of its own.
    number: i64,
}

const RECORD: &str = r#"{"cpu_ms":0,"denials":[],"logs":[],"logs_dropped":false,"memory_peak_bytes":1310720,"requests":[{"body_sha256":"047854090d8a2f1fd4d8e1bb29f0ebb6b5e0e6f9d2a4d1c5b5e7d7c9e1f2a3b4","error":null,"heard_at":1796002158090,"key":"workflow:6502e89a97364f9aa20aa3912b9537a1:step:s1","left_at":1796002158088,"method":"POST","number":1,"phase":"run","safe":false,"status":200,"url":"http://127.0.0.1:40000/v1/messages"}],"stderr":"","wall_ms":2}"#;
const SHORT_RECORD: &str = r#"{"cpu_ms":0,"denials":[],"logs":[],"logs_dropped":false,"memory_peak_bytes":1310720,"requests":[],"stderr":"","wall_ms":0}"#;
const OUTPUT: &str = r#"{"results":[{"body":"{}","headers":{"content-length":["2"]},"status":200}]}"#;
const HASH: &str = "047854090d8a2f1fd4d8e1bb29f0ebb6b5e0e6f9d2a4d1c5b5e7d7c9e1f2a3b4";

impl Bare {
    pub fn open(path: &Path) -> Bare {
        let connection = Connection::open(path).expect("the file opens");
        connection.pragma_update(None, "foreign_keys", true).expect("it is set");
        connection.pragma_update(None, "synchronous", "FULL").expect("it is set");
        connection.set_prepared_statement_cache_capacity(256);
        Bare { connection, number: 0 }
    }

    pub fn begin(&mut self) {
        self.execute("BEGIN IMMEDIATE", &[]);
    }

    pub fn commit(&mut self) {
        self.execute("COMMIT", &[]);
    }

    /// The rows of a charge and a mark.
    pub fn mark(&mut self, run: &str, step: &str) {
        self.number += 1;
        let dispatch = format!("991db11671824a2d94eb{:012}", self.number);
        let key = format!("workflow:{run}:step:{step}");
        self.touch(run);
        self.execute(
            "INSERT INTO tollgate_budget_used (root_id, dimension, used) VALUES ($1, 'emails', $2) \
                 ON CONFLICT (root_id, dimension) DO UPDATE SET used = excluded.used",
            params![run, self.number],
        );
        self.execute(
            "INSERT INTO tollgate_charges (root_id, run_id, step, dispatch, generation, request, dimension, amount, \
                 charged_at) VALUES ($1, $1, $2, $3, 1, 0, 'emails', 1000000, 1796002158087)",
            params![run, step, dispatch],
        );
        self.effect(run, step, &key, &dispatch, "executing", None);
        self.events(run, step, &["budget.charged", "effect.marked"]);
    }

    /// The rows of a settled effect, its result, and the next step's reservation.
    pub fn settle_effect(&mut self, run: &str, step: &str, next: &str, input: &str) {
        let key = format!("workflow:{run}:step:{step}");
        let dispatch = format!("991db11671824a2d94eb{:012}", self.number);
        self.effect(run, step, &key, &dispatch, "succeeded", Some(OUTPUT));
        self.settle(run, step, next, input, RECORD);
    }

    /// What the store asks before it settles a step without an effect and reserves the next one: as many statements.
    pub fn ask(&mut self, run: &str, step: &str, next: &str) {
        const ATTEMPT: &str = "SELECT number, dispatch, generation, holder, claim_expires_at FROM tollgate_attempts \
                               WHERE run_id = $1 AND unit = $2 AND state = 'running'";
        const BEGUN: &str = "SELECT min(started_at) AS begun_at FROM tollgate_attempts \
                             WHERE run_id = $1 AND unit = $2 AND (state = 'running' OR may_have_begun = 1)";
        const STEP: &str = "SELECT * FROM tollgate_steps WHERE run_id = $1 AND key = $2";
        const EVENT: &str = "SELECT 1 AS found FROM tollgate_events WHERE run_id = $1 AND idempotency_key = $2";
        let questions =
            [(ATTEMPT, step), (STEP, step), (STEP, next), (BEGUN, next), (ATTEMPT, next), (EVENT, step), (EVENT, next)];
        for (sql, key) in questions {
            let mut statement = self.connection.prepare_cached(sql).expect("it is prepared");
            let mut rows = statement.query(params![run, key]).expect("it answers");
            while rows.next().expect("it answers").is_some() {}
        }
    }

    /// The rows of a result without an effect, and the next step's reservation.
    pub fn settle_pure(&mut self, run: &str, step: &str, next: &str, input: &str) {
        self.settle(run, step, next, input, SHORT_RECORD);
    }

    fn settle(&mut self, run: &str, step: &str, next: &str, input: &str, record: &'static str) {
        self.touch(run);
        self.execute(
            "UPDATE tollgate_attempts SET state = 'finished', outcome = 'succeeded', record = $3, \
                 may_have_begun = 1, finished_at = 1796002158090 WHERE run_id = $1 AND unit = $2 AND number = 1",
            params![run, step, record],
        );
        self.execute(
            "UPDATE tollgate_steps SET state = 'completed', output = $3, failure = NULL, dependency = NULL, \
                 tries = tries + 0, completed_at = 1796002158090 WHERE run_id = $1 AND key = $2",
            params![run, step, OUTPUT],
        );
        self.reserve(run, next, input);
        self.events(run, step, &["attempt.finished", "step.completed", "attempt.started"]);
    }

    /// The rows of a reservation.
    pub fn reserve(&mut self, run: &str, step: &str, input: &str) {
        self.number += 1;
        self.execute(
            "UPDATE tollgate_steps SET state = 'running', input = $3, input_hash = $4, \
                 reserved_at = 1796002158090, started_at = 1796002158090 WHERE run_id = $1 AND key = $2",
            params![run, step, input, HASH],
        );
        self.execute(
            "INSERT INTO tollgate_attempts (run_id, unit, number, dispatch, claim_token, generation, holder, \
                 claim_expires_at, state, may_have_begun, lost, started_at) \
                 VALUES ($1, $2, 1, $3, $4, 1, 'bench', 1796002173090, 'running', 0, 0, 1796002158090)",
            params![
                run,
                step,
                format!("a91db11671824a2d94eb{:012}", self.number),
                format!("c91db11671824a2d94eb{:012}", self.number)
            ],
        );
    }

    fn effect(
        &mut self,
        run: &str,
        step: &str,
        key: &str,
        dispatch: &str,
        state: &'static str,
        output: Option<&'static str>,
    ) {
        self.execute(
            "INSERT INTO tollgate_effects (run_id, key, step, class, state, input_hash, component, generation, \
                 dispatch, marked_at, deadline, visible_within_ms, output, failure, settled_at) \
                 VALUES ($1, $2, $3, 'ambiguous', $4, $5, $5, 1, $6, 1796002158087, 1796002163087, 1000, $7, NULL, NULL) \
                 ON CONFLICT (run_id, key) DO UPDATE SET state = excluded.state, output = excluded.output, \
                 settled_at = 1796002158090",
            params![run, key, step, state, HASH, dispatch, output],
        );
    }

    fn touch(&mut self, run: &str) {
        let sql = "UPDATE tollgate_runs SET updated_at = updated_at + 1 WHERE id = $1";
        self.execute(sql, params![run]);
    }

    fn events(&mut self, run: &str, step: &str, kinds: &[&'static str]) {
        self.number += kinds.len() as i64;
        let sql = "UPDATE tollgate_runs SET event_seq = $2 WHERE id = $1";
        self.execute(sql, params![run, 1_000 + self.number]);
        let rows = [
            "($1, $2, $3, $4, $5, $6, $7)",
            "($8, $9, $10, $11, $12, $13, $14)",
            "($15, $16, $17, $18, $19, $20, $21)",
        ];
        let sql = format!(
            "INSERT INTO tollgate_events (run_id, seq, kind, step, at, data, idempotency_key) VALUES {}",
            rows[..kinds.len()].join(", ")
        );
        const DATA: &str = r#"{"attempt":1,"dispatch":"991db11671824a2d94eb49ccec5719e3","outcome":"succeeded"}"#;
        let numbers: Vec<i64> = (0..kinds.len() as i64).map(|index| 1_000 + self.number - index).collect();
        let mut values: Vec<&dyn ToSql> = Vec::new();
        for (kind, number) in kinds.iter().zip(&numbers) {
            values.extend::<[&dyn ToSql; 7]>([
                &run,
                number,
                kind,
                &step,
                &1_796_002_158_087_i64,
                &DATA,
                &None::<String>,
            ]);
        }
        self.execute(&sql, &values);
    }

    fn execute(&self, sql: &str, values: &[&dyn ToSql]) {
        self.connection.prepare_cached(sql).expect("it is prepared").execute(values).expect("it executes");
    }
}

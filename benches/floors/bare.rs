//! What a step leaves in the store, written by nobody: the same rows, the same settings, nothing asked and nothing checked.

use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{Connection as _, SqliteConnection};
use std::path::Path;

/// One connection to a store's file.
pub struct Bare {
    connection: SqliteConnection,
    /// So that every row has ids of its own.
    number: i64,
}

const RECORD: &str = r#"{"cpu_ms":0,"denials":[],"logs":[],"logs_dropped":false,"memory_peak_bytes":1310720,"requests":[{"body_sha256":"047854090d8a2f1fd4d8e1bb29f0ebb6b5e0e6f9d2a4d1c5b5e7d7c9e1f2a3b4","error":null,"heard_at":1796002158090,"key":"workflow:6502e89a97364f9aa20aa3912b9537a1:step:s1","left_at":1796002158088,"method":"POST","number":1,"phase":"run","safe":false,"status":200,"url":"http://127.0.0.1:40000/v1/messages"}],"stderr":"","wall_ms":2}"#;
const SHORT_RECORD: &str = r#"{"cpu_ms":0,"denials":[],"logs":[],"logs_dropped":false,"memory_peak_bytes":1310720,"requests":[],"stderr":"","wall_ms":0}"#;
const OUTPUT: &str = r#"{"results":[{"body":"{}","headers":{"content-length":["2"]},"status":200}]}"#;
const HASH: &str = "047854090d8a2f1fd4d8e1bb29f0ebb6b5e0e6f9d2a4d1c5b5e7d7c9e1f2a3b4";

impl Bare {
    pub async fn open(path: &Path) -> Bare {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full)
            .statement_cache_capacity(256);
        Bare { connection: SqliteConnection::connect_with(&options).await.expect("the file opens"), number: 0 }
    }

    pub async fn begin(&mut self) {
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut self.connection).await.expect("it begins");
    }

    pub async fn commit(&mut self) {
        sqlx::raw_sql("COMMIT").execute(&mut self.connection).await.expect("it commits");
    }

    /// The rows of a charge and a mark.
    pub async fn mark(&mut self, run: &str, step: &str) {
        self.number += 1;
        let dispatch = format!("991db11671824a2d94eb{:012}", self.number);
        let key = format!("workflow:{run}:step:{step}");
        self.touch(run).await;
        self.execute(
            sqlx::query(
                "INSERT INTO tollgate_budget_used (root_id, dimension, used) VALUES ($1, 'emails', $2) \
                 ON CONFLICT (root_id, dimension) DO UPDATE SET used = excluded.used",
            )
            .bind(run.to_owned())
            .bind(self.number),
        )
        .await;
        self.execute(
            sqlx::query(
                "INSERT INTO tollgate_charges (root_id, run_id, step, dispatch, generation, request, dimension, amount, \
                 charged_at) VALUES ($1, $1, $2, $3, 1, 0, 'emails', 1000000, 1796002158087)",
            )
            .bind(run.to_owned())
            .bind(step.to_owned())
            .bind(dispatch.clone()),
        )
        .await;
        self.effect(run, step, &key, &dispatch, "executing", None).await;
        self.events(run, step, &["budget.charged", "effect.marked"]).await;
    }

    /// The rows of a settled effect, its result, and the next step's reservation.
    pub async fn settle_effect(&mut self, run: &str, step: &str, next: &str, input: &str) {
        let key = format!("workflow:{run}:step:{step}");
        let dispatch = format!("991db11671824a2d94eb{:012}", self.number);
        self.effect(run, step, &key, &dispatch, "succeeded", Some(OUTPUT)).await;
        self.settle(run, step, next, input, RECORD).await;
    }

    /// What the store asks before it settles a step without an effect and reserves the next one: as many statements.
    pub async fn ask(&mut self, run: &str, step: &str, next: &str) {
        const ATTEMPT: &str = "SELECT number, dispatch, generation, holder, claim_expires_at FROM tollgate_attempts \
                               WHERE run_id = $1 AND unit = $2 AND state = 'running'";
        const BEGUN: &str = "SELECT min(started_at) AS begun_at FROM tollgate_attempts \
                             WHERE run_id = $1 AND unit = $2 AND (state = 'running' OR may_have_begun = 1)";
        const STEP: &str = "SELECT * FROM tollgate_steps WHERE run_id = $1 AND key = $2";
        const EVENT: &str = "SELECT 1 AS found FROM tollgate_events WHERE run_id = $1 AND idempotency_key = $2";
        let questions =
            [(ATTEMPT, step), (STEP, step), (STEP, next), (BEGUN, next), (ATTEMPT, next), (EVENT, step), (EVENT, next)];
        for (sql, key) in questions {
            let query = sqlx::query(sql).bind(run.to_owned()).bind(key.to_owned());
            query.fetch_all(&mut self.connection).await.expect("it answers");
        }
    }

    /// The rows of a result without an effect, and the next step's reservation.
    pub async fn settle_pure(&mut self, run: &str, step: &str, next: &str, input: &str) {
        self.settle(run, step, next, input, SHORT_RECORD).await;
    }

    async fn settle(&mut self, run: &str, step: &str, next: &str, input: &str, record: &'static str) {
        self.touch(run).await;
        self.execute(
            sqlx::query(
                "UPDATE tollgate_attempts SET state = 'finished', outcome = 'succeeded', record = $3, \
                 may_have_begun = 1, finished_at = 1796002158090 WHERE run_id = $1 AND unit = $2 AND number = 1",
            )
            .bind(run.to_owned())
            .bind(step.to_owned())
            .bind(record),
        )
        .await;
        self.execute(
            sqlx::query(
                "UPDATE tollgate_steps SET state = 'completed', output = $3, failure = NULL, dependency = NULL, \
                 tries = tries + 0, completed_at = 1796002158090 WHERE run_id = $1 AND key = $2",
            )
            .bind(run.to_owned())
            .bind(step.to_owned())
            .bind(OUTPUT),
        )
        .await;
        self.reserve(run, next, input).await;
        self.events(run, step, &["attempt.finished", "step.completed", "attempt.started"]).await;
    }

    /// The rows of a reservation.
    pub async fn reserve(&mut self, run: &str, step: &str, input: &str) {
        self.number += 1;
        self.execute(
            sqlx::query(
                "UPDATE tollgate_steps SET state = 'running', input = $3, input_hash = $4, \
                 reserved_at = 1796002158090, started_at = 1796002158090 WHERE run_id = $1 AND key = $2",
            )
            .bind(run.to_owned())
            .bind(step.to_owned())
            .bind(input.to_owned())
            .bind(HASH),
        )
        .await;
        self.execute(
            sqlx::query(
                "INSERT INTO tollgate_attempts (run_id, unit, number, dispatch, claim_token, generation, holder, \
                 claim_expires_at, state, may_have_begun, lost, started_at) \
                 VALUES ($1, $2, 1, $3, $4, 1, 'bench', 1796002173090, 'running', 0, 0, 1796002158090)",
            )
            .bind(run.to_owned())
            .bind(step.to_owned())
            .bind(format!("a91db11671824a2d94eb{:012}", self.number))
            .bind(format!("c91db11671824a2d94eb{:012}", self.number)),
        )
        .await;
    }

    async fn effect(
        &mut self,
        run: &str,
        step: &str,
        key: &str,
        dispatch: &str,
        state: &'static str,
        output: Option<&'static str>,
    ) {
        self.execute(
            sqlx::query(
                "INSERT INTO tollgate_effects (run_id, key, step, class, state, input_hash, component, generation, \
                 dispatch, marked_at, deadline, visible_within_ms, output, failure, settled_at) \
                 VALUES ($1, $2, $3, 'ambiguous', $4, $5, $5, 1, $6, 1796002158087, 1796002163087, 1000, $7, NULL, NULL) \
                 ON CONFLICT (run_id, key) DO UPDATE SET state = excluded.state, output = excluded.output, \
                 settled_at = 1796002158090",
            )
            .bind(run.to_owned())
            .bind(key.to_owned())
            .bind(step.to_owned())
            .bind(state)
            .bind(HASH)
            .bind(dispatch.to_owned())
            .bind(output),
        )
        .await;
    }

    async fn touch(&mut self, run: &str) {
        let sql = "UPDATE tollgate_runs SET updated_at = updated_at + 1 WHERE id = $1";
        self.execute(sqlx::query(sql).bind(run.to_owned())).await;
    }

    async fn events(&mut self, run: &str, step: &str, kinds: &[&'static str]) {
        self.number += kinds.len() as i64;
        let sql = "UPDATE tollgate_runs SET event_seq = $2 WHERE id = $1";
        self.execute(sqlx::query(sql).bind(run.to_owned()).bind(1_000 + self.number)).await;
        let rows = [
            "($1, $2, $3, $4, $5, $6, $7)",
            "($8, $9, $10, $11, $12, $13, $14)",
            "($15, $16, $17, $18, $19, $20, $21)",
        ];
        let sql = format!(
            "INSERT INTO tollgate_events (run_id, seq, kind, step, at, data, idempotency_key) VALUES {}",
            rows[..kinds.len()].join(", ")
        );
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql));
        for (index, kind) in kinds.iter().enumerate() {
            query = query
                .bind(run.to_owned())
                .bind(1_000 + self.number - index as i64)
                .bind(*kind)
                .bind(step.to_owned())
                .bind(1_796_002_158_087_i64)
                .bind(r#"{"attempt":1,"dispatch":"991db11671824a2d94eb49ccec5719e3","outcome":"succeeded"}"#)
                .bind(None::<String>);
        }
        self.execute(query).await;
    }

    async fn execute(&mut self, query: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>) {
        query.execute(&mut self.connection).await.expect("it executes");
    }
}

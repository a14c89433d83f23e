//! Components of apps: versions, the active one, and the bytes by digest.
//!
//! What stands in a descriptor, and whether the bytes are a component at all, whoever pushes has checked.

use super::db::{Row, Tx, args};
use super::{Store, StoreError};
use crate::clock::Timestamp;

/// One version of an app's component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentRow {
    /// The owner.
    pub app: String,
    /// From 1.
    pub version: u32,
    /// SHA-256 of its bytes.
    pub digest: String,
    /// The canonical text of what it says of itself.
    pub descriptors: String,
    /// When.
    pub pushed_at: Timestamp,
    /// Whether new runs get this one.
    pub active: bool,
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// The version that is active now.
    pub version: u32,
    /// Whether it was there already, so that nothing was written.
    pub existing: bool,
}

/// What became of an activation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activated {
    /// The version that is active now.
    pub row: ComponentRow,
    /// The version that was active before; the same where nothing was to do.
    pub before: Option<u32>,
}

const COLUMNS: &str = "app, version, digest, descriptors, pushed_at, active";

impl Store {
    /// Makes these bytes the active component of `app`. When it returns, bytes, version and its being active are
    /// durable together. The digest of the active version again writes nothing and answers that version.
    pub async fn push_component(
        &self,
        app: &str,
        digest: &str,
        bytes: Vec<u8>,
        descriptors: &str,
        at: Timestamp,
    ) -> Result<Pushed, StoreError> {
        let row = ComponentRow {
            app: app.to_owned(),
            version: 0,
            digest: digest.to_owned(),
            descriptors: descriptors.to_owned(),
            pushed_at: at,
            active: true,
        };
        self.database.write("pushing a component", move |tx| Box::pin(async move { push(tx, row, bytes).await })).await
    }

    /// Makes a version that was pushed before the active one of `app`. When it returns, that this one is active and no other
    /// is durable; what is active already writes nothing. `None` where the app has no such version, and then nothing has
    /// changed. Runs under way name a digest and do not notice.
    pub async fn activate_component(&self, app: &str, version: u32) -> Result<Option<Activated>, StoreError> {
        let app = app.to_owned();
        self.database
            .write("activating a component", move |tx| Box::pin(async move { activate(tx, &app, version).await }))
            .await
    }

    /// One version of `app`, or the active one. Reads only.
    pub async fn component(&self, app: &str, version: Option<u32>) -> Result<Option<ComponentRow>, StoreError> {
        let mut tx = self.database.read("reading a component").await?;
        match version {
            None => active(&mut tx, app).await,
            Some(version) => numbered(&mut tx, app, version).await,
        }
    }

    /// Every version of every app, by app and version. Reads only.
    pub async fn components(&self) -> Result<Vec<ComponentRow>, StoreError> {
        let mut tx = self.database.read("listing components").await?;
        let sql = format!("SELECT {COLUMNS} FROM @components ORDER BY app, version");
        tx.fetch_all(&sql, args![]).await?.iter().map(from_row).collect()
    }

    /// The version that has this digest; of several, the one pushed last. Reads only.
    pub async fn component_by_digest(&self, digest: &str) -> Result<Option<ComponentRow>, StoreError> {
        let mut tx = self.database.read("reading a component").await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM @components WHERE digest = $1 ORDER BY pushed_at DESC, app, version DESC LIMIT 1"
        );
        one(tx.fetch_optional(&sql, args![digest]).await?)
    }

    /// The bytes of a component. Reads only.
    pub async fn component_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let mut tx = self.database.read("reading a component's bytes").await?;
        let sql = "SELECT bytes FROM @component_blobs WHERE digest = $1";
        tx.fetch_optional(sql, args![digest]).await?.map(|row| row.bytes("bytes")).transpose()
    }
}

fn from_row(row: &Row) -> Result<ComponentRow, StoreError> {
    Ok(ComponentRow {
        app: row.text("app")?,
        version: row.count("version")?,
        digest: row.text("digest")?,
        descriptors: row.text("descriptors")?,
        pushed_at: row.time("pushed_at")?,
        active: row.flag("active")?,
    })
}

fn one(row: Option<Row>) -> Result<Option<ComponentRow>, StoreError> {
    row.as_ref().map(from_row).transpose()
}

async fn active(tx: &mut Tx, app: &str) -> Result<Option<ComponentRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM @components WHERE app = $1 AND active = 1");
    one(tx.fetch_optional(&sql, args![app]).await?)
}

async fn numbered(tx: &mut Tx, app: &str, version: u32) -> Result<Option<ComponentRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM @components WHERE app = $1 AND version = $2");
    one(tx.fetch_optional(&sql, args![app, i64::from(version)]).await?)
}

async fn activate(tx: &mut Tx, app: &str, version: u32) -> Result<Option<Activated>, StoreError> {
    let Some(row) = numbered(tx, app, version).await? else { return Ok(None) };
    let before = active(tx, app).await?.map(|active| active.version);
    if !row.active {
        // One after the other: at no moment are two versions active, which the schema refuses.
        tx.execute("UPDATE @components SET active = 0 WHERE app = $1 AND active = 1", args![app]).await?;
        let sql = "UPDATE @components SET active = 1 WHERE app = $1 AND version = $2";
        tx.execute(sql, args![app, i64::from(version)]).await?;
    }
    Ok(Some(Activated { row: ComponentRow { active: true, ..row }, before }))
}

async fn push(tx: &mut Tx, row: ComponentRow, bytes: Vec<u8>) -> Result<Pushed, StoreError> {
    if let Some(active) = active(tx, &row.app).await?.filter(|active| active.digest == row.digest) {
        return Ok(Pushed { version: active.version, existing: true });
    }
    tx.execute(
        "INSERT INTO @component_blobs (digest, bytes) VALUES ($1, $2) ON CONFLICT (digest) DO NOTHING",
        args![&row.digest, bytes],
    )
    .await?;
    tx.execute("UPDATE @components SET active = 0 WHERE app = $1 AND active = 1", args![&row.app]).await?;
    let sql = "SELECT coalesce(max(version), 0) + 1 AS version FROM @components WHERE app = $1";
    let next = tx.fetch_optional(sql, args![&row.app]).await?;
    let version: u32 = next.ok_or_else(|| tx.corrupt("a new version has no number"))?.count("version")?;
    tx.execute(
        "INSERT INTO @components (app, version, digest, descriptors, pushed_at, active) VALUES ($1, $2, $3, $4, $5, 1)",
        args![&row.app, i64::from(version), &row.digest, &row.descriptors, row.pushed_at],
    )
    .await?;
    Ok(Pushed { version, existing: false })
}

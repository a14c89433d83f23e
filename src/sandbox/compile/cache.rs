//! Compiled forms on disk, so that a component is compiled once per machine and engine.
//!
//! A compiled form is machine code, and a folder is not a safe place: whoever can write there could have this host run what
//! they like. So each entry carries an authentication code under a key that only this user can read, over the entry's name
//! and every byte of it; the folder and the key must be this user's own; and the very bytes that were verified are the ones
//! that are used. Whatever does not verify is a miss.
//!
//! The key lies beside the entries in a folder of the user's, never beside a project's files: a project folder that somebody
//! sent would bring its own key and its own entries along.
//!
//! It compiles nothing, and a cache that cannot be written to is slow, not an error.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::CompiledForm;

/// How an entry begins: its kind and the version of its format.
const MAGIC: &[u8; 16] = b"tollgate-code-1\n";
/// The length of an authentication code, and of the key.
const CODE_BYTES: usize = 32;
/// The largest entry that is read.
const ENTRY_BYTES_MAX: u64 = 512 << 20;
/// How large all entries together may be, where nobody says.
const BYTES_MAX: u64 = 2 << 30;
/// What an entry's name ends in.
const EXTENSION: &str = "compiled";
/// A temporary file of this age was left behind by a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Others may neither read nor write.
const PRIVATE_FILE: u32 = 0o600;
/// Others may not even look.
const PRIVATE_FOLDER: u32 = 0o700;

/// A folder of compiled forms. Clones share it; so may processes.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    key: [u8; CODE_BYTES],
    bytes_max: u64,
    temporaries: AtomicU64,
}

/// Why a folder cannot be a cache.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot keep compiled components: {reason}", folder.display())]
pub struct CacheError {
    folder: PathBuf,
    reason: String,
}

impl Cache {
    /// Opens a folder; creates it, and its key, where they are missing.
    ///
    /// # Errors
    /// [`CacheError`] where the folder or its key is somebody else's or open to others, or cannot be made.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Cache, CacheError> {
        let folder = folder.into();
        let fail = |reason: String| CacheError { folder: folder.clone(), reason };
        fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(&folder).map_err(|e| fail(e.to_string()))?;
        own(&folder, &fs::metadata(&folder).map_err(|error| fail(error.to_string()))?, 0o022).map_err(fail)?;
        let key = key(&folder.join("key")).map_err(fail)?;
        Ok(Cache { inner: Arc::new(Inner { folder, key, bytes_max: BYTES_MAX, temporaries: AtomicU64::new(0) }) })
    }

    /// The same folder with another bound on the size of all entries together; the oldest go first.
    #[must_use]
    pub fn with_bytes_max(self, bytes_max: u64) -> Cache {
        let Inner { folder, key, .. } = &*self.inner;
        let inner = Inner { folder: folder.clone(), key: *key, bytes_max, temporaries: AtomicU64::new(0) };
        Cache { inner: Arc::new(inner) }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// The compiled form of this name, if there is one and it is ours.
    pub(in crate::sandbox) fn get(&self, name: &str) -> Option<CompiledForm> {
        let path = self.inner.entry(name);
        let entry = read_bounded(&path, ENTRY_BYTES_MAX).ok()?;
        let form = self.inner.verified(name, entry)?;
        // Used is young. An entry that cannot be touched goes earlier, that is all.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(CompiledForm::of_this_compiler(form))
    }

    /// Keeps a compiled form under this name, in place of whatever is there.
    pub(in crate::sandbox) fn put(&self, name: &str, form: &CompiledForm) -> io::Result<()> {
        let inner = &*self.inner;
        let size = (MAGIC.len() + CODE_BYTES + form.bytes().len()) as u64;
        if size > inner.bytes_max.min(ENTRY_BYTES_MAX) {
            return Ok(());
        }
        let number = inner.temporaries.fetch_add(1, Ordering::Relaxed);
        let temporary = inner.folder.join(format!("{}-{number}.new", std::process::id()));
        let written = write_entry(&temporary, &inner.code(name, form.bytes()), form.bytes())
            .and_then(|()| fs::rename(&temporary, inner.entry(name)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.and_then(|()| inner.tidy(SystemTime::now()))
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Cache({})", self.inner.folder.display())
    }
}

impl Inner {
    fn entry(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{EXTENSION}"))
    }

    fn mac(&self, name: &str, form: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).ok()?;
        mac.update(MAGIC);
        mac.update(&(name.len() as u64).to_le_bytes());
        mac.update(name.as_bytes());
        mac.update(form);
        Some(mac)
    }

    fn code(&self, name: &str, form: &[u8]) -> Vec<u8> {
        // A key of any length makes a code; without one the entry verifies for nobody.
        self.mac(name, form).map(|mac| mac.finalize().into_bytes().to_vec()).unwrap_or_default()
    }

    /// The form in an entry, if this key made it under this name.
    fn verified(&self, name: &str, entry: Vec<u8>) -> Option<Bytes> {
        let rest = entry.strip_prefix(MAGIC)?;
        let (code, form) = rest.split_at_checked(CODE_BYTES)?;
        self.mac(name, form)?.verify_slice(code).ok()?;
        Some(Bytes::from(entry).split_off(MAGIC.len() + CODE_BYTES))
    }

    /// Deletes the oldest entries past the bound, and what dead processes left.
    fn tidy(&self, now: SystemTime) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            // Another process tidies too: what is gone is gone.
            let Ok(data) = fs::symlink_metadata(&path) else { continue };
            let modified = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(EXTENSION) => entries.push((modified, data.len(), path)),
                Some("new") if now.duration_since(modified).is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(&path);
                }
                _ => {}
            }
        }
        for path in oldest_past(self.bytes_max, entries) {
            let _ = fs::remove_file(path);
        }
        Ok(())
    }
}

/// Which entries to delete so that the rest fits: the oldest, and no more than needed.
fn oldest_past(bytes_max: u64, mut entries: Vec<(SystemTime, u64, PathBuf)>) -> Vec<PathBuf> {
    entries.sort();
    let mut total: u64 = entries.iter().map(|(_, size, _)| size).sum();
    let mut gone = Vec::new();
    for (_, size, path) in entries {
        if total <= bytes_max {
            break;
        }
        total -= size;
        gone.push(path);
    }
    gone
}

/// Reads the key; makes one where there is none. Of two processes that start at once one makes it and both use it.
fn key(path: &Path) -> Result<[u8; CODE_BYTES], String> {
    let mut key = [0; CODE_BYTES];
    if !path.exists() {
        rand::fill(&mut key);
        let temporary = path.with_extension(format!("{}.key", std::process::id()));
        // Written whole before it has its name, and `link` refuses a name that is taken.
        let made = write_private(&temporary, &[&key]).and_then(|()| match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
        let _ = fs::remove_file(&temporary);
        made.map_err(|error| format!("its key cannot be made: {error}"))?;
    }
    let unreadable = |error: io::Error| format!("its key cannot be read: {error}");
    let mut file = open_plain(path).map_err(unreadable)?;
    own(path, &file.metadata().map_err(unreadable)?, 0o077)?;
    file.read_exact(&mut key).map_err(unreadable)?;
    match file.read(&mut [0]).map_err(unreadable)? {
        0 => Ok(key),
        _ => Err("its key is longer than a key is; delete it".to_owned()),
    }
}

/// Whether something is this user's own and closed to others in these respects.
fn own(path: &Path, data: &fs::Metadata, closed: u32) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    if data.uid() != user {
        return Err(format!("{} belongs to user {}, and this process is user {user}", path.display(), data.uid()));
    }
    if data.mode() & closed != 0 {
        let mode = data.mode() & 0o777;
        return Err(format!("{} is open to others (mode {mode:o}); chmod go= it", path.display()));
    }
    Ok(())
}

/// Opens a file that is no link to another.
fn open_plain(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_plain(path)?;
    let size = file.metadata()?.len();
    if size > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut read = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(limit).read_to_end(&mut read)?;
    Ok(read)
}

fn write_entry(path: &Path, code: &[u8], form: &[u8]) -> io::Result<()> {
    write_private(path, &[MAGIC, code, form])
}

/// Writes a file that was not there before and that only this user can read.
fn write_private(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    // One of that name can only be left over from a process that had this one's number.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(path)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn form(bytes: &'static [u8]) -> CompiledForm {
        CompiledForm::of_this_compiler(Bytes::from_static(bytes))
    }

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("there is room");
        let cache = Cache::open(folder.path().join("cache")).expect("it opens");
        (folder, cache)
    }

    #[test]
    fn what_was_kept_is_found_under_its_name_alone() {
        let (_folder, cache) = cache();
        cache.put("a", &form(b"code")).expect("it is written");
        assert_eq!(cache.get("a").expect("it is kept").bytes().as_ref(), b"code");
        assert!(cache.get("b").is_none());
        // An entry under another's name is foreign, however genuine.
        fs::copy(cache.inner.entry("a"), cache.inner.entry("b")).expect("it is copied");
        assert!(cache.get("b").is_none());
        // Opened again, the key is the same.
        let again = Cache::open(cache.folder()).expect("it opens again");
        assert!(again.get("a").is_some());
        cache.put("a", &form(b"other")).expect("it is replaced");
        assert_eq!(again.get("a").expect("it is kept").bytes().as_ref(), b"other");
    }

    #[test]
    fn an_entry_that_is_not_whole_and_ours_is_a_miss() {
        let (_folder, cache) = cache();
        cache.put("a", &form(b"some machine code")).expect("it is written");
        let path = cache.inner.entry("a");
        let whole = fs::read(&path).expect("it is there");
        for index in 0..whole.len() {
            for bit in 0..8 {
                let mut forged = whole.clone();
                forged[index] ^= 1 << bit;
                fs::write(&path, &forged).expect("it is written");
                assert!(cache.get("a").is_none(), "byte {index}, bit {bit}");
            }
            fs::write(&path, &whole[..index]).expect("it is written");
            assert!(cache.get("a").is_none(), "cut off at {index}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).expect("it is written");
        assert!(cache.get("a").is_none(), "longer by one");
        let (_other_folder, other) = self::cache();
        other.put("a", &form(b"some machine code")).expect("it is written");
        fs::copy(other.inner.entry("a"), &path).expect("it is copied");
        assert!(cache.get("a").is_none(), "made under another key");
        fs::write(&path, &whole).expect("it is written");
        assert!(cache.get("a").is_some(), "and the whole one is none of these");
        let elsewhere = cache.folder().join("elsewhere");
        fs::rename(&path, &elsewhere).expect("it moves");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("it is linked");
        assert!(cache.get("a").is_none(), "a link to one");
    }

    #[track_caller]
    fn refuses(folder: &Path, expected: &str) {
        let refused = Cache::open(folder).expect_err("it is refused").to_string();
        assert!(refused.contains(expected), "{refused} should mention {expected}");
    }

    #[test]
    fn a_folder_or_key_that_is_open_to_others_is_refused() {
        let (_folder, cache) = cache();
        let (folder, key) = (cache.folder(), cache.folder().join("key"));
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        assert_eq!(fs::metadata(&key).expect("it is there").mode() & 0o777, PRIVATE_FILE);
        assert_eq!(fs::metadata(folder).expect("it is there").mode() & 0o777, PRIVATE_FOLDER);
        mode(&key, 0o640);
        refuses(folder, "open to others (mode 640)");
        mode(&key, 0o600);
        mode(folder, 0o777);
        refuses(folder, "open to others (mode 777)");
        mode(folder, 0o755);
        assert!(Cache::open(folder).is_ok());
        fs::write(&key, b"short").expect("it is written");
        refuses(folder, "its key cannot be read");
        fs::write(&key, [7; CODE_BYTES + 1]).expect("it is written");
        refuses(folder, "longer than a key is");
        fs::remove_file(&key).expect("it is removed");
        std::os::unix::fs::symlink("/etc/hostname", &key).expect("it is linked");
        refuses(folder, "its key cannot be read");
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let entries = vec![
            (at(3), 10, PathBuf::from("young")),
            (at(1), 10, PathBuf::from("oldest")),
            (at(2), 10, PathBuf::from("old")),
        ];
        assert_eq!(oldest_past(30, entries.clone()), Vec::<PathBuf>::new());
        assert_eq!(oldest_past(29, entries.clone()), [PathBuf::from("oldest")]);
        assert_eq!(oldest_past(5, entries).len(), 3);

        let (_folder, cache) = cache();
        let cache = cache.with_bytes_max(2 * (48 + 4));
        for (seconds, name) in [(1, "a"), (2, "b"), (3, "c")] {
            cache.put(name, &form(b"code")).expect("it is written");
            let file = File::open(cache.inner.entry(name)).expect("it is there");
            file.set_modified(at(seconds)).expect("it is ours");
        }
        assert!(cache.get("a").is_none() && cache.get("b").is_some() && cache.get("c").is_some());
        cache.put("d", &form(&[7; 200])).expect("it is not an error");
        assert!(cache.get("d").is_none(), "an entry larger than the whole cache is not kept");
        let left = cache.folder().join("1-1.new");
        fs::write(&left, b"half").expect("it is written");
        cache.inner.tidy(SystemTime::now()).expect("it is tidied");
        assert!(left.exists(), "it may still be written to");
        cache.inner.tidy(SystemTime::now() + 2 * ABANDONED).expect("it is tidied");
        assert!(!left.exists(), "nobody writes it any more");
    }
}

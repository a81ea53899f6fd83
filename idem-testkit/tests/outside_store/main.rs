//! The conformance suite over a store that is none of ours. It is written from the public
//! documentation alone, so what it needs is public: a store outside this repository can be written
//! like it.

mod directory;
mod place;

use idem_core::record::RecordId;
use idem_testkit::{BoxError, Subject, suite};
use tempfile::TempDir;

use crate::directory::DirectoryStore;

/// A directory for one trial: a step holds the lock of the directory, and a trial must not wait for
/// all others. In memory if it can be, because a disk may be busy for longer than a step may take.
struct InDirectory(std::io::Result<TempDir>);

impl InDirectory {
    fn create() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()))
    }
}

impl Subject for InDirectory {
    type Store = DirectoryStore;

    /// Handles share nothing but the directory, as those of several processes.
    async fn store(&self) -> Result<DirectoryStore, BoxError> {
        let root = self.0.as_ref().map_err(ToString::to_string)?;
        Ok(DirectoryStore::open(root.path().to_owned())?)
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let file = self.store().await?.file(id);
        std::fs::create_dir_all(file.parent().ok_or("a file is in a directory")?)?;
        std::fs::write(file, value)?;
        Ok(true)
    }
}

fn main() {
    let mut trials = suite::tests("", InDirectory::create);
    trials.extend(suite::admin_tests("", InDirectory::create));
    suite::run_tests(trials)
}

//! The conformance suite over a store that is none of ours. It is written from the public
//! documentation alone, so what it needs is public: a store outside this repository can be written
//! like it.

mod directory;
mod place;

use std::path::PathBuf;
use std::sync::LazyLock;

use idem_core::record::RecordId;
use idem_testkit::{BoxError, Subject, suite};
use tempfile::TempDir;

use crate::directory::DirectoryStore;

/// One directory for all trials: their ids differ.
static ROOT: LazyLock<Result<TempDir, std::io::Error>> = LazyLock::new(tempfile::tempdir);

struct InDirectory;

impl InDirectory {
    fn root() -> Result<PathBuf, BoxError> {
        let root = ROOT.as_ref().map_err(ToString::to_string)?;
        Ok(root.path().to_owned())
    }
}

impl Subject for InDirectory {
    type Store = DirectoryStore;

    /// Handles share nothing but the directory, as those of several processes.
    async fn store(&self) -> Result<DirectoryStore, BoxError> {
        Ok(DirectoryStore::open(Self::root()?)?)
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let file = self.store().await?.file(id);
        std::fs::create_dir_all(file.parent().ok_or("a file is in a directory")?)?;
        std::fs::write(file, value)?;
        Ok(true)
    }
}

fn main() {
    let mut trials = suite::tests("", || InDirectory);
    trials.extend(suite::admin_tests("", || InDirectory));
    suite::run_tests(trials)
}

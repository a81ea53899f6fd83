//! Databases and folders of a single test. They end with its thread, which outlives its runtime,
//! and which also ends if the test panics.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use idem_testkit::PostgresServer;
use tempfile::TempDir;

use crate::server::Server;

/// The names of the databases on one server whose tests have ended.
pub(crate) type Ended = &'static Mutex<Vec<String>>;

thread_local! {
    static MADE: Made = Made::default();
}

/// All that one test has made.
#[derive(Default)]
struct Made {
    folders: RefCell<Vec<TempDir>>,
    /// Each with the list that it joins at the end.
    databases: RefCell<Vec<(String, Ended)>>,
}

impl Drop for Made {
    fn drop(&mut self) {
        for (name, ended) in self.databases.take() {
            ended.lock().unwrap().push(name);
        }
    }
}

/// Creates a folder for files of SQLite that ends with its test: in memory, where that can be. On a
/// disk that others use, a commit may take longer than a step.
pub(crate) fn temporary() -> TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.unwrap()
}

/// Creates a folder for a file of SQLite.
pub(crate) fn folder() -> PathBuf {
    let folder = temporary();
    let path = folder.path().to_owned();
    MADE.with(|made| made.folders.borrow_mut().push(folder));
    path
}

/// An empty database on the server of all tests.
pub(crate) struct Database<S: 'static> {
    server: &'static S,
    name: String,
}

impl<S: Server> Database<S> {
    /// Creates one, and drops those of tests that have ended.
    pub(crate) async fn create() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);

        let server = S::shared().await;
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let ended = std::mem::take(&mut *S::ended().lock().unwrap());
        for name in ended {
            // If it stays, it ends with the server.
            let drop = S::DROP.replace("{}", &name);
            let _ = S::try_execute_at(&server.url(), &drop).await;
        }
        S::execute_at(&server.url(), &format!("CREATE DATABASE {name}")).await;
        MADE.with(|made| {
            let database = (name.clone(), S::ended());
            made.databases.borrow_mut().push(database);
        });
        Self { server, name }
    }

    pub(crate) fn url(&self) -> String {
        self.of(&self.server.url())
    }

    pub(crate) fn url_through(&self, port: u16) -> String {
        self.of(&self.server.url_through(port))
    }

    /// The port of its server.
    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns a store with long limits, whose table is there.
    pub(crate) async fn store(&self) -> S::Store {
        S::store_at(&self.url()).await
    }

    /// Returns a store with a pool of its own and the usual limits, whose table is there.
    pub(crate) async fn own_store(&self) -> S::Store {
        S::own_store_at(&self.url()).await
    }

    /// Returns a store with a table of this name.
    pub(crate) async fn with_table(&self, table: &str) -> S::Store {
        S::with_table(&self.url(), table).await
    }

    pub(crate) async fn execute(&self, statement: &str) {
        S::execute_at(&self.url(), statement).await;
    }

    /// Reads one number.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        S::number_at(&self.url(), statement).await
    }

    /// The URL of this database, by that of another one.
    fn of(&self, url: &str) -> String {
        let (host, _) = url.rsplit_once('/').unwrap();
        format!("{host}/{}", self.name)
    }
}

impl Database<PostgresServer> {
    /// Changes a setting, for all connections that are opened from now on.
    pub(crate) async fn set(&self, setting: &str) {
        self.execute(&format!("ALTER DATABASE {} SET {setting}", self.name))
            .await;
    }
}

//! A database of our own, and what calls go to it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use idem::{Error, Idempotency, MySqlStore, Outcome, PostgresStore, SqliteStore};
use idem_bench::{RESULT_BYTES, plain, result};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy};
use tempfile::TempDir;

use super::database::Database;
use super::floor::Floor;
use super::slim;
use crate::report::Kind;

/// How long records are kept.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// Arguments of the servers of large tables.
const POSTGRES: [&str; 4] = ["-c", "shared_buffers=2GB", "-c", "max_wal_size=8GB"];
const MARIADB: [&str; 2] = ["--innodb-buffer-pool-size=4G", "--innodb-log-file-size=1G"];

enum Server {
    Postgres(PostgresServer),
    Mariadb(MariaDbServer),
    Mysql(MySqlServer),
    Sqlite(TempDir),
}

/// A database, with the floors and the store.
pub(crate) struct Place {
    pub(crate) database: Database,
    server: Server,
    pub(crate) floor: Floor,
    /// A pool to the store's own table.
    pub(crate) table: Floor,
    pub(crate) idempotency: Idempotency,
    result: String,
}

/// The caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The store's own statements.
    Statements,
    Ours,
    Slim,
}

impl Subject {
    pub(crate) const ALL: [Self; 3] = [Self::Statements, Self::Ours, Self::Slim];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Statements => "the store's statements by hand",
            Self::Ours => "idem",
            Self::Slim => "the slim floor",
        }
    }
}

impl Place {
    /// Starts a database. A large one has memory and a log as its administrator would give it.
    pub(crate) async fn start(database: Database, is_large: bool) -> Result<Self> {
        let (postgres, mariadb): (&[&str], &[&str]) = if is_large {
            (&POSTGRES, &MARIADB)
        } else {
            (&[], &[])
        };
        let server = match database {
            Database::Postgres => Server::Postgres(PostgresServer::start_with(postgres).await?),
            Database::Mariadb => Server::Mariadb(MariaDbServer::start_with(mariadb).await?),
            Database::Mysql => Server::Mysql(MySqlServer::start_with(mariadb).await?),
            Database::Sqlite => {
                Server::Sqlite(tempfile::Builder::new().prefix("idem-bench-").tempdir()?)
            }
        };
        let url = server.url();
        let idempotency = runtime(&url).await?;
        // In a file of its own: SQLite has one writer for each.
        let (floor, table) = if let Server::Sqlite(dir) = &server {
            let floor =
                Floor::connect(&format!("sqlite://{}/floor.db", dir.path().display())).await?;
            (floor, Floor::connect(&url).await?)
        } else {
            let floor = Floor::connect(&url).await?;
            (floor.clone(), floor)
        };
        slim::create(&floor).await?;
        Ok(Self {
            database,
            server,
            floor,
            table,
            idempotency,
            result: result(),
        })
    }

    /// One call.
    pub(crate) async fn call(&self, subject: Subject, kind: Kind, key: &str) -> Result<()> {
        let length = match (subject, kind) {
            (Subject::Statements, Kind::First) => {
                return self.floor.first(key, &self.result).await;
            }
            (Subject::Statements, Kind::Replay) => self.floor.replay(key).await?,
            (Subject::Slim, Kind::First) => {
                return slim::first(&self.floor, key, &self.result).await;
            }
            (Subject::Slim, Kind::Replay) => slim::replay(&self.floor, key).await?,
            (Subject::Ours, _) => guarded(&self.idempotency, key, &self.result).await?,
        };
        ensure!(length == RESULT_BYTES, "{length} bytes are no outcome");
        Ok(())
    }

    /// Another process: a runtime with connections of its own.
    pub(crate) async fn process(&self) -> Result<Idempotency> {
        runtime(&self.server.url()).await
    }

    /// How many messages a first execution and a replay send, once statements are prepared. A file
    /// takes none.
    pub(crate) async fn messages(&self) -> Result<Option<[u64; 2]>> {
        if let Server::Sqlite(_) = &self.server {
            return Ok(None);
        }
        let proxy = Proxy::start(&self.server.url()).await?;
        let all = proxy.passing(|_| true);
        let idempotency = runtime(
            &self
                .server
                .url_through(&proxy)
                .context("a file has no proxy")?,
        )
        .await?;
        let mut counted = [0; 2];
        // The first ones prepare; calls one after the other use one connection.
        for number in 0..8 {
            let key = format!("messages-{number}");
            for (count, _) in counted.iter_mut().zip(0..2) {
                let before = all.calls();
                guarded(&idempotency, &key, &self.result).await?;
                *count = all.calls() - before;
            }
        }
        Ok(Some(counted))
    }

    /// The directory of the database's files.
    pub(crate) fn dir(&self) -> &std::path::Path {
        match &self.server {
            Server::Postgres(server) => server.dir(),
            Server::Mariadb(server) => server.dir(),
            Server::Mysql(server) => server.dir(),
            Server::Sqlite(dir) => dir.path(),
        }
    }
}

impl Server {
    fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::Mariadb(server) => server.url(),
            Self::Mysql(server) => server.url(),
            Self::Sqlite(dir) => format!("sqlite://{}/idem.db", dir.path().display()),
        }
    }

    fn url_through(&self, proxy: &Proxy) -> Option<String> {
        let port = proxy.address().port();
        match self {
            Self::Postgres(server) => Some(server.url_through(port)),
            Self::Mariadb(server) => Some(server.url_through(port)),
            Self::Mysql(server) => Some(server.url_through(port)),
            Self::Sqlite(_) => None,
        }
    }
}

async fn runtime(url: &str) -> Result<Idempotency> {
    let builder = match url.split("://").next() {
        Some("postgres") => {
            let store = PostgresStore::connect(url).await?;
            store.migrate().await?;
            Idempotency::builder(store)
        }
        Some("mysql") => {
            let store = MySqlStore::connect(url).await?;
            store.migrate().await?;
            Idempotency::builder(store)
        }
        _ => Idempotency::builder(SqliteStore::connect(url).await?),
    };
    Ok(builder.ttl(DAY).build())
}

async fn guarded(idempotency: &Idempotency, key: &str, result: &str) -> Result<usize> {
    let outcome = idempotency
        .operation("bench")
        .key(key)
        .run(|| plain(result))
        .await;
    let outcome: Result<_, Error> = outcome.map(Outcome::into_inner);
    Ok(outcome?.len())
}

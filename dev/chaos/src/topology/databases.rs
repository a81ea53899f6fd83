//! The databases of a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy};
use tokio::sync::Mutex;

/// A database that was started, with its table. It keeps acknowledged writes over the death of its
/// processes.
#[derive(Debug)]
pub(crate) enum Databases {
    Postgres(PostgresServer),
    PostgresPair(Box<Pair>),
    Mariadb(MariaDbServer),
    Mysql(MySqlServer),
    Sqlite(PathBuf),
}

/// A PostgreSQL, and the standby that takes its place when it dies. A commit waits until the
/// standby has it on its disk.
#[derive(Debug)]
pub(crate) struct Pair {
    /// Of whichever is the first one just now, as an address that moves.
    address: Proxy,
    /// Through that.
    url: String,
    servers: Mutex<Both>,
}

#[derive(Debug)]
struct Both {
    primary: PostgresServer,
    /// `None` only while there is a failover.
    standby: Option<PostgresServer>,
}

/// The same of whichever server it is, and something else of what is not one server.
macro_rules! of_one_server {
    ($databases:expr, $server:ident => $then:expr, $($other:pat => $else:expr,)*) => {
        match $databases {
            Self::Postgres($server) => $then,
            Self::Mariadb($server) => $then,
            Self::Mysql($server) => $then,
            $($other => $else,)*
        }
    };
}

const SYNCHRONOUS: [&str; 2] = ["-c", "synchronous_standby_names=standby"];

impl Databases {
    pub(crate) async fn postgres() -> Result<Self> {
        let server = PostgresServer::start().await?;
        PostgresStore::connect(server.url())
            .await?
            .migrate()
            .await?;
        Ok(Self::Postgres(server))
    }

    pub(crate) async fn postgres_pair() -> Result<Self> {
        let primary = PostgresServer::start_with(&SYNCHRONOUS).await?;
        let standby = primary.start_standby(&SYNCHRONOUS).await?;
        PostgresStore::connect(primary.url())
            .await?
            .migrate()
            .await?;
        let address = Proxy::start_opaque(&primary.url()).await?;
        let url = primary.url_through(address.address().port());
        let servers = Mutex::new(Both {
            primary,
            standby: Some(standby),
        });
        Ok(Self::PostgresPair(Box::new(Pair {
            address,
            url,
            servers,
        })))
    }

    pub(crate) async fn mariadb() -> Result<Self> {
        let server = MariaDbServer::start().await?;
        MySqlStore::connect(server.url()).await?.migrate().await?;
        Ok(Self::Mariadb(server))
    }

    pub(crate) async fn mysql() -> Result<Self> {
        let server = MySqlServer::start().await?;
        MySqlStore::connect(server.url()).await?.migrate().await?;
        Ok(Self::Mysql(server))
    }

    pub(crate) async fn sqlite(folder: &Path) -> Result<Self> {
        let file = folder.join("records.db");
        SqliteStore::connect(in_file(&file)).await?;
        Ok(Self::Sqlite(file))
    }

    /// The URL for a process of workers, whose proxy this is.
    pub(crate) fn url(&self, proxy: Option<&Proxy>) -> String {
        let through = proxy.map(|proxy| proxy.address().port());
        of_one_server! { self,
            server => through.map_or_else(|| server.url(), |port| server.url_through(port)),
            Self::PostgresPair(pair) => match through {
                Some(port) => pair.url_through(port),
                None => pair.url.clone(),
            },
            Self::Sqlite(file) => in_file(file),
        }
    }

    pub(crate) async fn proxy(&self) -> Result<Option<Proxy>> {
        let upstream = of_one_server! { self,
            server => server.url(),
            Self::PostgresPair(pair) => pair.address.address().to_string(),
            Self::Sqlite(_) => return Ok(None),
        };
        Ok(Some(Proxy::start_opaque(&upstream).await?))
    }

    /// Kills the server. It is started again after a while, or another one takes its place at once.
    pub(crate) async fn kill(&self, length: Duration, down: impl Fn(bool)) -> Result<()> {
        of_one_server! { self,
            server => {
                server.kill()?;
                after(length, down).await;
                server.restart().await?;
            },
            Self::PostgresPair(pair) => pair.fail_over().await?,
            Self::Sqlite(_) => {},
        }
        Ok(())
    }

    /// Stops a server for a while: of a pair the standby every second time, without which nothing
    /// is acknowledged.
    pub(crate) async fn pause(&self, target: usize, length: Duration) -> Result<()> {
        of_one_server! { self,
            server => {
                server.pause()?;
                tokio::time::sleep(length).await;
                server.resume()?;
            },
            Self::PostgresPair(pair) => {
                let both = pair.servers.lock().await;
                let standby = both.standby.as_ref().filter(|_| !target.is_multiple_of(2));
                let server = standby.unwrap_or(&both.primary);
                server.pause()?;
                tokio::time::sleep(length).await;
                server.resume()?;
            },
            Self::Sqlite(_) => {},
        }
        Ok(())
    }
}

impl Pair {
    /// The password and all else is the same through each port.
    fn url_through(&self, port: u16) -> String {
        self.url.replace(
            &format!(":{}/", self.address.address().port()),
            &format!(":{port}/"),
        )
    }

    /// The first one dies for good, and its standby takes its place. Then that one has a standby.
    async fn fail_over(&self) -> Result<()> {
        let mut both = self.servers.lock().await;
        both.primary.kill()?;
        let promoted = both.standby.take().context("there is no standby")?;
        promoted.promote().await?;
        self.address.lead_to(&promoted.url());
        both.standby = Some(promoted.start_standby(&SYNCHRONOUS).await?);
        both.primary = promoted;
        Ok(())
    }
}

/// No server is there, for so long.
async fn after(length: Duration, down: impl Fn(bool)) {
    down(true);
    tokio::time::sleep(length).await;
    down(false);
}

fn in_file(file: &Path) -> String {
    format!("sqlite://{}", file.display())
}

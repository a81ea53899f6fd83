//! A private PgBouncer.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use super::PostgresServer;
use super::database::{Database, Kind, find};
use super::port::HeldPort;
use super::postgres::PASSWORD;

/// A private PgBouncer in front of a [`PostgresServer`], which pools transactions: each of a
/// client's transactions may be on another connection to the server. On Linux only.
///
/// It is killed when this is dropped, and when this process ends, in whatever way.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::{PgBouncerServer, PostgresServer};
///
/// # async fn example() -> std::io::Result<()> {
/// let server = PostgresServer::start().await?;
/// let bouncer = PgBouncerServer::start(&server).await?;
/// let url = bouncer.url(); // postgres://..
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PgBouncerServer {
    bouncer: Database,
    url: String,
}

impl PgBouncerServer {
    /// Starts one in front of this server.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not start; says why, and what to do.
    pub async fn start(server: &PostgresServer) -> io::Result<Self> {
        Self::start_with(server, &[]).await
    }

    /// Starts one with further lines of its section `[pgbouncer]`, such as
    /// `["pool_mode = session"]`. Of two lines for one setting the later one wins.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_with(server: &PostgresServer, settings: &[&str]) -> io::Result<Self> {
        let port = server.port();
        let settings = settings.join("\n");
        let fill = move |dir: &Path| {
            fs::write(dir.join("users"), format!("\"postgres\" \"{PASSWORD}\"\n"))?;
            let databases = format!("[databases]\n* = host=127.0.0.1 port={port}\n");
            fs::write(dir.join("databases.ini"), databases)?;
            fs::write(dir.join("settings.ini"), format!("{settings}\n"))?;
            Ok(Command::new("true"))
        };
        let bouncer = Database::start_made_by::<PgBouncer>(fill, &[]).await?;
        let url = server.url_through(bouncer.port());
        Ok(Self { bouncer, url })
    }

    /// The server's URL through it, with the password.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Its port on `127.0.0.1`, which nobody else is given while the server is down.
    pub fn port(&self) -> u16 {
        self.bouncer.port()
    }

    /// Kills it, as its host dies. The server stays.
    ///
    /// # Errors
    ///
    /// If killing fails. A stopped one is not an error.
    pub fn kill(&self) -> io::Result<()> {
        self.bouncer.kill()
    }

    /// Kills it if it runs, and starts it again at the same port.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn restart(&self) -> io::Result<()> {
        self.bouncer.restart().await
    }
}

struct PgBouncer;

impl Kind for PgBouncer {
    const NAME: &'static str = "pgbouncer";

    fn program() -> io::Result<PathBuf> {
        let directories = ["/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
        find(
            "pgbouncer",
            &directories,
            "`apt-get install pgbouncer`, `brew install pgbouncer`",
        )
    }

    fn create(_dir: &Path) -> io::Result<Command> {
        Err(io::Error::other("it keeps nothing"))
    }

    fn arguments(dir: &Path, port: u16, _: &mut Vec<HeldPort>) -> io::Result<Vec<OsString>> {
        let at = |file: &str| dir.join(file).display().to_string();
        let settings = [
            format!("%include {}", at("databases.ini")),
            "[pgbouncer]".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {port}"),
            "unix_socket_dir =".to_owned(),
            "auth_type = plain".to_owned(),
            format!("auth_file = {}", at("users")),
            "admin_users = postgres".to_owned(),
            "pool_mode = transaction".to_owned(),
            "max_client_conn = 500".to_owned(),
            format!("%include {}", at("settings.ini")),
        ];
        let file = dir.join("pgbouncer.ini");
        fs::write(&file, settings.join("\n") + "\n")?;
        Ok(vec![file.into()])
    }
}

//! A private NATS server.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::sync::OnceCell;

use super::database::{Database, Kind, find};
use super::port::HeldPort;

/// A private `nats-server` with JetStream: empty, on a free port of this host, unprivileged, its
/// files in a temporary directory. On Linux only.
///
/// It is killed when this is dropped, and when this process ends, in whatever way.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::NatsServer;
///
/// # async fn example() -> std::io::Result<()> {
/// let server = NatsServer::start().await?;
/// let url = server.url(); // nats://..
/// server.kill()?;
/// server.restart().await?; // with its streams, at the same port
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NatsServer(Database);

impl NatsServer {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not start; says why, and what to do.
    pub async fn start() -> io::Result<Self> {
        Database::start::<Nats>(&[]).await.map(Self)
    }

    /// One for all tests of this process. It is started at the first call, and killed when the
    /// process ends. Tests that share it use streams of their own, and leave it running.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn shared() -> io::Result<&'static Self> {
        static SHARED: OnceCell<NatsServer> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.url_through(self.port())
    }

    /// Its URL through another port on this host, such as a proxy's.
    pub fn url_through(&self, port: u16) -> String {
        format!("nats://127.0.0.1:{port}")
    }

    /// Its port on `127.0.0.1`, which nobody else is given while the server is down.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// Suspends it (SIGSTOP): connections stay, and nothing is answered.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn pause(&self) -> io::Result<()> {
        self.0.signal("STOP")
    }

    /// Lets it go on after [`pause`](Self::pause).
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.0.signal("CONT")
    }

    /// Kills it, as a host dies. Its data stays.
    ///
    /// # Errors
    ///
    /// If killing fails. A stopped server is not an error.
    pub fn kill(&self) -> io::Result<()> {
        self.0.kill()
    }

    /// Kills it if it runs, and starts it again at the same port, with its data.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn restart(&self) -> io::Result<()> {
        self.0.restart().await
    }
}

struct Nats;

impl Kind for Nats {
    const NAME: &'static str = "nats";

    fn program() -> io::Result<PathBuf> {
        let directories = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
        find(
            "nats-server",
            &directories,
            "`apt-get install nats-server`, `brew install nats-server`",
        )
    }

    fn create(_: &Path) -> io::Result<Command> {
        Ok(Command::new("true"))
    }

    fn arguments(dir: &Path, port: u16, _: &mut Vec<HeldPort>) -> io::Result<Vec<OsString>> {
        let port = port.to_string();
        let args = [
            "--addr",
            "127.0.0.1",
            "--port",
            &port,
            "--jetstream",
            "--store_dir",
        ]
        .map(OsString::from);
        Ok(args
            .into_iter()
            .chain([dir.join("jetstream").into()])
            .collect())
    }
}

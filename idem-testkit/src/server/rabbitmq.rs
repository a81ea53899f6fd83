//! A private RabbitMQ.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use tokio::sync::OnceCell;

use super::database::{Database, Kind, find};
use super::port::HeldPort;

/// Starts the node directly, since Debian's `rabbitmq-server` runs as one user only. Its port
/// mapper is a child of the node, and ends with it.
const SCRIPT: &str = r#"
server=$1 dir=$2 port=$3 dist=$4 epmd=$5
export HOME="$dir" ERL_EPMD_PORT="$epmd" ERL_EPMD_ADDRESS=127.0.0.1
export RABBITMQ_CONF_ENV_FILE="$dir/none" RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf" RABBITMQ_ENABLED_PLUGINS_FILE="$dir/plugins"
export RABBITMQ_NODENAME="idem$port@localhost" RABBITMQ_DIST_PORT="$dist"
export RABBITMQ_MNESIA_BASE="$dir/mnesia" RABBITMQ_LOG_BASE="$dir/log.d" RABBITMQ_LOGS=- RABBITMQ_PID_FILE="$dir/pid"
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +S 2:2"
cd "$dir"
dies=$(command -v setpriv) && dies="$dies --pdeathsig KILL"
until epmd -port "$epmd" -names >/dev/null 2>&1; do
    kill -0 "$!" 2>/dev/null || { $dies epmd -port "$epmd" -address 127.0.0.1 & }
    sleep 0.05
done
# The script's word for "replace this shell by the node".
export detached=1
exec "$server"
"#;

const SETTINGS: &str = "log.console = true
log.console.level = info
log.file = false
disk_free_limit.absolute = 1MB
";

/// A private RabbitMQ server: empty, on a free port of this host, unprivileged, its files in a
/// temporary directory. On Linux only.
///
/// It is killed, its port mapper (`epmd`) included, when this is dropped, and when this process
/// ends, in whatever way. It starts within ten seconds or so.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::RabbitMqServer;
///
/// # async fn example() -> std::io::Result<()> {
/// let server = RabbitMqServer::start().await?;
/// let url = server.url(); // amqp://..
/// server.kill()?;
/// server.restart().await?; // with its durable queues, at the same port
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RabbitMqServer(Database);

impl RabbitMqServer {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not start; says why, and what to do.
    pub async fn start() -> io::Result<Self> {
        Database::start::<RabbitMq>(&[]).await.map(Self)
    }

    /// Returns whether it is installed here.
    pub fn is_installed() -> bool {
        RabbitMq::program().is_ok()
    }

    /// One for all tests of this process. It is started at the first call, and killed when the
    /// process ends. Tests that share it use queues of their own, and leave it running.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn shared() -> io::Result<&'static Self> {
        static SHARED: OnceCell<RabbitMqServer> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.url_through(self.port())
    }

    /// Its URL through another port on this host, such as a proxy's.
    pub fn url_through(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
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

struct RabbitMq;

impl Kind for RabbitMq {
    const NAME: &'static str = "rabbitmq";

    fn program() -> io::Result<PathBuf> {
        server()?;
        find("sh", &["/bin".into()], "the shell is part of every system")
    }

    fn create(_: &Path) -> io::Result<Command> {
        Ok(Command::new("true"))
    }

    fn arguments(dir: &Path, port: u16, more: &mut Vec<HeldPort>) -> io::Result<Vec<OsString>> {
        fs::write(
            dir.join("rabbitmq.conf"),
            format!("{SETTINGS}listeners.tcp.1 = 127.0.0.1:{port}\n"),
        )?;
        let mut args: Vec<OsString> = vec![
            "-c".into(),
            SCRIPT.into(),
            "sh".into(),
            server()?.into(),
            dir.into(),
        ];
        args.push(port.to_string().into());
        // Those of the node and of its mapper.
        for _ in 0..2 {
            let port = HeldPort::hold()?;
            args.push(port.port().to_string().into());
            more.push(port);
        }
        Ok(args)
    }
}

/// The script that starts a node as the present user. The one in Debian's `PATH` is another.
fn server() -> io::Result<PathBuf> {
    let debian = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmq-server");
    if debian.is_file() {
        return Ok(debian);
    }
    let directories = ["/usr/local/sbin", "/opt/homebrew/sbin"].map(PathBuf::from);
    find(
        "rabbitmq-server",
        &directories,
        "`apt-get install rabbitmq-server`, `brew install rabbitmq`",
    )
}

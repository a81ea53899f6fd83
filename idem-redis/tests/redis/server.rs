//! A redis-server for one test, and what it says of itself.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, FromRedisValue};
use tempfile::TempDir;

/// Ends with the value that holds it.
pub(crate) struct Server {
    process: Child,
    port: u16,
    args: Vec<String>,
    /// A replica leaves its master's data in its directory, where a later server would load it.
    _dir: TempDir,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        // The port is free when it is looked up, and may be taken a moment later.
        (0..5)
            .find_map(|_| {
                let port = TcpListener::bind("127.0.0.1:0")
                    .unwrap()
                    .local_addr()
                    .unwrap()
                    .port();
                Self::try_start(port, args.clone())
            })
            .expect("redis-server starts")
    }

    fn try_start(port: u16, args: Vec<String>) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new(
            std::env::var_os("IDEM_REDIS_SERVER").unwrap_or_else(|| "redis-server".into()),
        )
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .args(&args)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
        let deadline = Instant::now() + Duration::from_secs(10);
        while process.try_wait().unwrap().is_none() && Instant::now() < deadline {
            if answers(port) {
                return Some(Self {
                    process,
                    port,
                    args,
                    _dir: dir,
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = process.kill();
        let _ = process.wait();
        None
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Ends it, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again after it was killed, at the same place, with nothing in it.
    pub(crate) fn restart(&mut self) {
        let again =
            Self::try_start(self.port, self.args.clone()).expect("redis-server starts again");
        *self = again;
    }

    pub(crate) fn stop(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill")
                .args([signal, &self.process.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }

    /// A connection for the test itself.
    pub(crate) async fn client(&self) -> MultiplexedConnection {
        Client::open(self.url())
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .unwrap()
    }

    /// Sends one command, given as words.
    pub(crate) async fn send<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_send(words).await.unwrap()
    }

    pub(crate) async fn try_send<T: FromRedisValue>(
        &self,
        words: &[&str],
    ) -> redis::RedisResult<T> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query_async(&mut self.client().await).await
    }

    /// Whether it has `SET .. IFEQ`.
    pub(crate) async fn compares(&self) -> bool {
        self.try_send::<Option<String>>(&["SET", "probe", "", "IFEQ", "nothing"])
            .await
            .is_ok()
    }

    /// The value of a key, as text.
    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        self.send(&["GET", key]).await
    }

    /// How often each command was carried out since the last call of this, in scripts or not.
    pub(crate) async fn commands(&self) -> BTreeMap<String, u64> {
        let stats: String = self.send(&["INFO", "commandstats"]).await;
        let () = self.send(&["CONFIG", "RESETSTAT"]).await;
        let count = |line: &str| {
            let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let calls = counts
                .strip_prefix("calls=")?
                .split(',')
                .next()?
                .parse()
                .ok()?;
            Some((name.to_owned(), calls))
        };
        // The commands of the test's own connections.
        let own = [
            "info",
            "config|resetstat",
            "hello",
            "client|setinfo",
            "ping",
        ];
        stats
            .lines()
            .filter_map(count)
            .filter(|(name, _)| !own.contains(&name.as_str()))
            .collect()
    }

    /// How often scripts were called since the last call of [`commands`](Self::commands), which
    /// this does not count as.
    pub(crate) async fn scripts(&self) -> u64 {
        let stats: String = self.send(&["INFO", "commandstats"]).await;
        let calls = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls
            .and_then(|calls| calls.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    pub(crate) async fn channels(&self) -> Vec<String> {
        self.send(&["PUBSUB", "CHANNELS"]).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let mut answer = [0; 1];
    // An error is an answer too: there may be a password.
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut answer).is_ok()
}

/// Waits until something holds, for at most two seconds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(
            Instant::now() < deadline,
            "not within twenty seconds: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

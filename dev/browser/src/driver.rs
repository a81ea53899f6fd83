//! The process `chromedriver`, which starts the browsers and ends them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Stdio;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// It ends when this is dropped, and its browsers with it: also when a test panics.
pub(crate) struct Driver {
    port: u16,
    _process: Child,
    /// The files of the browsers: they leave their profiles behind. Dropped last.
    dir: TempDir,
}

const SAYS_ITS_PORT: &str = "started successfully on port ";

/// How often it is started. It takes a free port of IPv4, and then the same of IPv6, which another
/// process may have: then it ends.
const STARTS: u32 = 5;

impl Driver {
    pub(crate) async fn start() -> Result<Self> {
        for _ in 0..STARTS {
            if let Some(driver) = Self::try_start().await? {
                return Ok(driver);
            }
        }
        bail!("chromedriver ended without saying its port, {STARTS} times");
    }

    /// `None`: it ended without saying its port.
    async fn try_start() -> Result<Option<Self>> {
        let dir = tempfile::Builder::new().prefix("idem-browser-").tempdir()?;
        let mut process = Command::new("chromedriver")
            .arg("--port=0")
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context(
                "cannot start chromedriver: install it and Chromium (Debian: \
                      chromium-driver), or run `cargo xtask ci`, which does",
            )?;
        let stdout = process
            .stdout
            .take()
            .context("chromedriver has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await? {
            if let Some((_, port)) = line.split_once(SAYS_ITS_PORT) {
                let port = port
                    .trim_end_matches('.')
                    .parse()
                    .with_context(|| format!("chromedriver says {line:?}"))?;
                // It prints more later, which must be read.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(Some(Self {
                    port,
                    _process: process,
                    dir,
                }));
            }
        }
        Ok(None)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Killed, it would leave its browsers running. Asked, it ends them first, and then closes the
    /// connection.
    fn shut_down(&self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream
            .write_all(b"GET /shutdown HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            eprintln!("chromedriver did not shut down: {error}");
        }
        // The last processes of a browser end after that answer, and write until then.
        for _ in 0..100 {
            match fs::remove_dir_all(self.dir.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    thread::sleep(Duration::from_millis(50));
                }
                _ => break,
            }
        }
    }
}

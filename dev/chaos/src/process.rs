//! A process of workers, as the parent has it.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use crate::settings::Settings;

/// How long a process may take to end by itself.
const END: Duration = Duration::from_secs(25);

/// One process. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: u64,
    child: Child,
    stdin: ChildStdin,
}

impl Process {
    pub(crate) fn start(
        settings: &Settings,
        number: u64,
        url: &str,
        broker: Option<&str>,
    ) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("worker")
            .arg("--folder")
            .arg(&settings.folder)
            .args([
                "--process",
                &number.to_string(),
                "--seed",
                &settings.seed.to_string(),
                "--url",
                url,
            ])
            .args(["--replicas", &settings.replicas.to_string()])
            .args([
                "--lease",
                &settings.lease.as_millis().to_string(),
                "--epoch",
                &settings.epoch.to_string(),
            ]);
        if let Some(flaw) = &settings.mutant {
            command.args(["--mutant", flaw]);
        }
        if let Some(broker) = broker {
            command.args(["--broker", broker]);
        }
        let mut child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdin = child
            .stdin
            .take()
            .context("a process of workers has no standard input")?;
        Ok(Self {
            number,
            child,
            stdin,
        })
    }

    /// Kills it, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .context("a process of workers cannot be killed")
    }

    /// Stops it, as a process that has no time on its host.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Has it end its calls, and waits for it. Says whether it ended by itself.
    pub(crate) async fn end(mut self) -> Result<bool> {
        // If it is gone already, the write fails; the check below notices.
        let _ = self.stdin.write_all(b".").await;
        if let Ok(status) = tokio::time::timeout(END, self.child.wait()).await {
            return Ok(status?.success());
        }
        self.kill().await?;
        Ok(false)
    }

    fn signal(&self, signal: Signal) {
        // It is not waited for yet, so the number is still its own; one that has ended takes no
        // signal, which is as well.
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }
}

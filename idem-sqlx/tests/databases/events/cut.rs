//! Connections that are cut at each message of a call, the one with `COMMIT` among them.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use idem_core::Error;
use idem_testkit::{MariaDbServer, PostgresServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::rows::{mariadb, postgres};
use crate::Server as _;
use crate::failed::Failed;

/// What is cut: the message that fits, counted from when this was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Message(usize),
    Commit,
}

/// Whether the server gets the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It does, and answers; the answer is lost.
    Yes,
    No,
}

#[derive(Debug, Default)]
struct Plan {
    next: Option<(At, Heard)>,
    messages: usize,
    /// Connections stay open, so that who is to be killed cannot learn of anything.
    holds: bool,
}

/// A proxy that knows messages by how clients write them: each in one piece.
pub(super) struct Cutter {
    port: u16,
    plan: Arc<Mutex<Plan>>,
    pub(super) done: Arc<Notify>,
}

impl Cutter {
    pub(super) async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::new(Mutex::new(Plan::default()));
        let done = Arc::new(Notify::new());
        let its = plan.clone();
        let told = done.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream))
                    .await
                    .unwrap();
                tokio::spawn(pass(client, server, its.clone(), told.clone()));
            }
        });
        Self { port, plan, done }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn cut(&self, at: At, heard: Heard, holds: bool) {
        *self.plan.lock().unwrap() = Plan {
            next: Some((at, heard)),
            messages: 0,
            holds,
        };
    }

    /// Whether it was cut since.
    pub(super) fn has_cut(&self) -> bool {
        self.plan.lock().unwrap().next.is_none()
    }
}

async fn pass(
    mut client: TcpStream,
    mut server: TcpStream,
    plan: Arc<Mutex<Plan>>,
    done: Arc<Notify>,
) {
    let mut said = vec![0; 1 << 16];
    let mut answered = vec![0; 1 << 16];
    loop {
        tokio::select! {
            length = client.read(&mut said) => {
                let Ok(length @ 1..) = length else { return };
                let message = &said[..length];
                let (heard, holds) = {
                    let mut plan = plan.lock().unwrap();
                    let number = plan.messages;
                    plan.messages += 1;
                    let cuts = |at| match at {
                        At::Message(cut) => number == cut,
                        At::Commit => message.windows(6).any(|word| word == b"COMMIT"),
                    };
                    let heard = plan.next.filter(|(at, _)| cuts(*at)).map(|(_, heard)| heard);
                    if heard.is_some() {
                        plan.next = None;
                    }
                    (heard, plan.holds)
                };
                if heard != Some(Heard::No) && server.write_all(message).await.is_err() {
                    return;
                }
                if let Some(heard) = heard {
                    if heard == Heard::Yes {
                        let _ = server.read(&mut answered).await;
                    }
                    done.notify_one();
                    if holds {
                        // Until the client is gone.
                        while matches!(client.read(&mut said).await, Ok(1..)) {}
                    }
                    return;
                }
            }
            length = server.read(&mut answered) => {
                let Ok(length @ 1..) = length else { return };
                if client.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

macro_rules! cuts {
    ($name:ident, $module:ident, $level:literal) => {
        /// A call whose connection is cut at one message. Returns whether there was that message.
        async fn $name(
            url: &str,
            through: &str,
            cutter: &Cutter,
            (at, heard): (At, Heard),
        ) -> bool {
            let key = &format!("cut at {at:?}, heard: {heard:?}");
            let direct = $module::World::new(url, $level, "BEGIN").await;
            let cut = $module::World::new(through, $level, "BEGIN").await;
            // Connected, and its table checked.
            cut.answer(&format!("{key}, before")).await;
            cutter.cut(at, heard, false);
            let operation = cut.idempotency.operation("events").key(key);
            let called = operation
                .transaction(&cut.pool, async |tx| $module::write(tx, key).await)
                .await;
            let was_cut = cutter.has_cut();
            cutter.cut(At::Message(usize::MAX), heard, false);
            // Rows and record, or neither. While the server still undoes the call, it is neither.
            let is_done = direct.is_done(key).await;
            match called {
                // The connection was cut after its last message.
                Ok(_) => assert!(is_done, "{key}"),
                Err(Failed::Idem(Error::Store { .. }) | Failed::Sql(_)) => {
                    assert!(was_cut, "{key}: a failure without a cut");
                    assert!(
                        heard == Heard::Yes || !is_done,
                        "{key}: what the server has not heard is done"
                    );
                }
                Err(error) => panic!("{key}: {error}"),
            }
            // The next call finds both, or makes both.
            assert_eq!(direct.answer(key).await.is_replayed(), is_done, "{key}");
            assert!(direct.is_done(key).await, "{key}");
            was_cut
        }
    };
}

cuts!(cut_on_postgres, postgres, "READ COMMITTED");
cuts!(cut_on_mariadb, mariadb, "REPEATABLE READ");

macro_rules! cut_at_any_message {
    ($test:ident, $cut:ident, $Server:ty) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let server = <$Server>::empty().await;
            let cutter = Cutter::start(server.port()).await;
            let through = server.url_through(cutter.port());
            let cut = async |at, heard| $cut(&server.url(), &through, &cutter, (at, heard)).await;
            for heard in [Heard::Yes, Heard::No] {
                assert!(cut(At::Commit, heard).await, "there is a COMMIT");
                let mut message = 0;
                while cut(At::Message(message), heard).await {
                    message += 1;
                }
                assert!(message > 4, "a call has {message} messages");
            }
        }
    };
}

cut_at_any_message!(
    a_connection_cut_at_any_message_of_a_call_leaves_rows_and_record_or_neither_on_postgres,
    cut_on_postgres,
    PostgresServer
);
cut_at_any_message!(
    a_connection_cut_at_any_message_of_a_call_leaves_rows_and_record_or_neither_on_mariadb,
    cut_on_mariadb,
    MariaDbServer
);

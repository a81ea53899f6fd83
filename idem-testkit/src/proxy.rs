//! A faulty network between a client and a server.

mod frames;
mod passing;
mod sql;

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::frames::{Frame, ReplyKind};
pub use self::passing::{Mishap, Passing};
use self::sql::Conversation;
use crate::fault::Gate;

/// A TCP proxy that can cut connections, swallow replies and delay them; and, where the two speak
/// as Redis, PostgreSQL or MySQL do, lose or hold single requests and replies.
///
/// It runs in the tokio runtime in which it was started, and ends, with all its connections, when
/// it is dropped.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::{Mishap, Proxy, RedisServer};
///
/// # async fn example() -> std::io::Result<()> {
/// let server = RedisServer::start().await?;
/// let proxy = Proxy::start(&server.url()).await?;
/// // Connect to proxy.url(), then:
/// proxy.swallow_replies(true); // requests are carried out, and their replies are lost
/// proxy.restore();
/// let increments = proxy.passing(|words| words[0] == b"INCR");
/// increments.next(Mishap::LoseReply); // the next one is carried out, and the connection ends
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    upstream: Upstream,
    mode: Arc<watch::Sender<Mode>>,
    kinds: Kinds,
    listening: JoinHandle<()>,
}

/// The kinds of requests that tests asked for; a request is of the first that it fits.
type Kinds = Arc<RwLock<Vec<Passing>>>;

/// The server's address.
type Upstream = Arc<RwLock<String>>;

/// The protocol, as far as requests must be understood.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Redis,
    Postgres,
    MySql,
    Unknown,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mode {
    cut: bool,
    swallow: bool,
    delay: Duration,
    /// Of new connections.
    opening: Duration,
}

impl Proxy {
    /// Starts one before a server, which is given as `host:port` or as a URL with both. A URL's
    /// scheme says which protocol is spoken: that of Redis, unless it is `postgres` or `mysql`.
    ///
    /// Of a connection that is encrypted, single requests are not seen.
    ///
    /// # Errors
    ///
    /// If no port can be listened at.
    pub async fn start(upstream: &str) -> io::Result<Self> {
        let protocol = match upstream.split_once("://") {
            Some(("postgres" | "postgresql", _)) => Protocol::Postgres,
            Some(("mysql" | "mariadb", _)) => Protocol::MySql,
            _ => Protocol::Redis,
        };
        Self::start_as(upstream, protocol).await
    }

    /// Starts one before a server of another protocol, of which it knows nothing: it can cut,
    /// swallow and delay.
    ///
    /// # Errors
    ///
    /// If no port can be listened at.
    pub async fn start_opaque(upstream: &str) -> io::Result<Self> {
        Self::start_as(upstream, Protocol::Unknown).await
    }

    async fn start_as(upstream: &str, protocol: Protocol) -> io::Result<Self> {
        let upstream = Upstream::new(RwLock::new(address(upstream)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let mode = Arc::new(watch::Sender::new(Mode::default()));
        let kinds = Kinds::default();
        let listening = tokio::spawn(listen(
            listener,
            upstream.clone(),
            mode.subscribe(),
            kinds.clone(),
            protocol,
        ));
        Ok(Self {
            port,
            upstream,
            mode,
            kinds,
            listening,
        })
    }

    /// Leads new connections to another server of the same protocol, as an address does that moves
    /// in a failover. Those that there are stay as they are.
    pub fn lead_to(&self, upstream: &str) {
        *self
            .upstream
            .write()
            .unwrap_or_else(PoisonError::into_inner) = address(upstream);
    }

    /// Returns the URL for Redis clients.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Returns the address for any client.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Selects the requests whose words match, to count them and to script mishaps. If several
    /// selections match, the first counts.
    pub fn passing(&self, is_one: impl Fn(&[&[u8]]) -> bool + Send + Sync + 'static) -> Passing {
        let kind = Passing::new(is_one);
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(kind.clone());
        kind
    }

    /// Ends all connections, and each new one at once.
    pub fn cut(&self) {
        self.mode.send_modify(|mode| mode.cut = true);
    }

    /// Keeps replies from the client, while its requests reach the server. A connection that has
    /// missed a reply ends when replies are let through again, since what follows would answer
    /// other requests.
    pub fn swallow_replies(&self, swallow: bool) {
        self.mode.send_modify(|mode| mode.swallow = swallow);
    }

    /// Delays each reply.
    pub fn delay(&self, delay: Duration) {
        self.mode.send_modify(|mode| mode.delay = delay);
    }

    /// Delays the opening of each new connection, as a slow handshake does. Connections that there
    /// are stay as they are.
    pub fn delay_connections(&self, delay: Duration) {
        self.mode.send_modify(|mode| mode.opening = delay);
    }

    /// Ends these faults. The mishaps of single requests stay.
    pub fn restore(&self) {
        self.mode.send_replace(Mode::default());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.listening.abort();
    }
}

/// `host:port` of a URL, or of itself.
fn address(upstream: &str) -> String {
    let address = upstream
        .split_once("://")
        .map_or(upstream, |(_, rest)| rest);
    let address = address.split(['/', '?']).next().unwrap_or_default();
    address
        .rsplit_once('@')
        .map_or(address, |(_, host)| host)
        .to_owned()
}

async fn listen(
    listener: TcpListener,
    upstream: Upstream,
    mode: watch::Receiver<Mode>,
    kinds: Kinds,
    protocol: Protocol,
) {
    while let Ok((client, _)) = listener.accept().await {
        if !mode.borrow().cut {
            let upstream = upstream
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            tokio::spawn(connect(
                client,
                upstream,
                mode.clone(),
                kinds.clone(),
                protocol,
            ));
        }
    }
}

async fn connect(
    client: TcpStream,
    upstream: String,
    mode: watch::Receiver<Mode>,
    kinds: Kinds,
    protocol: Protocol,
) {
    let opening = mode.borrow().opening;
    tokio::time::sleep(opening).await;
    // A server that is down looks to the client as it is: the connection ends.
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut cut = mode.clone();
    let pending = Pending {
        requests: Mutex::default(),
        session: Mutex::default(),
        protocol,
    };
    // Whichever ends first ends the connection, in both directions.
    tokio::select! {
        biased;
        _ = cut.wait_for(|mode| mode.cut) => {}
        () = requests(from_client, to_server, &kinds, &pending) => {}
        () = replies(from_server, to_client, mode, &pending) => {}
    }
}

/// The requests of one connection that were not answered yet, in their order.
struct Pending {
    requests: Mutex<VecDeque<Awaited>>,
    /// Of a database.
    session: Mutex<Conversation>,
    protocol: Protocol,
}

struct Awaited {
    /// How many replies it still gets: a subscription is confirmed for each channel.
    replies: usize,
    /// The mishap of the first of them.
    mishap: Mishap,
}

impl Pending {
    /// The last request on a connection to a database: the reply belongs to none before it.
    fn put(&self, mishap: Mishap) {
        let mut pending = self.lock();
        pending.clear();
        pending.push_back(Awaited { replies: 1, mishap });
    }

    fn push(&self, words: &[&[u8]], mishap: Mishap) {
        let subscribes = words
            .first()
            .is_some_and(|name| name.to_ascii_lowercase().ends_with(b"subscribe"));
        let replies = if subscribes {
            words.len().saturating_sub(1).max(1)
        } else {
            1
        };
        self.lock().push_back(Awaited { replies, mishap });
    }

    /// A reply has come. Says what goes wrong with it.
    fn answered(&self) -> Mishap {
        let mut pending = self.lock();
        let Some(first) = pending.front_mut() else {
            return Mishap::Pass;
        };
        first.replies -= 1;
        let mishap = std::mem::replace(&mut first.mishap, Mishap::Pass);
        if first.replies == 0 {
            pending.pop_front();
        }
        mishap
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Awaited>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> MutexGuard<'_, Conversation> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fate of a request or a reply.
enum Next {
    /// It goes on; so long it is.
    Send(usize),
    /// It goes on when the gate is open; so long it is.
    Hang(usize, Gate),
    /// It is lost, and the connection with it.
    End,
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    kinds: &Kinds,
    pending: &Pending,
) {
    let mut read = Vec::new();
    while from
        .read_buf(&mut read)
        .await
        .is_ok_and(|length| length > 0)
    {
        if !send_on(&mut read, &mut to, |bytes| {
            first_request(bytes, kinds, pending)
        })
        .await
        {
            return;
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    pending: &Pending,
) {
    let mut read = Vec::new();
    let mut swallowed = false;
    loop {
        let length = tokio::select! {
            _ = mode.wait_for(|mode| swallowed && !mode.swallow) => return,
            length = from.read_buf(&mut read) => length,
        };
        let (Ok(1..), Mode { swallow, delay, .. }) = (length, *mode.borrow()) else {
            return;
        };
        if swallow {
            swallowed = true;
            read.clear();
            continue;
        }
        tokio::time::sleep(delay).await;
        if !send_on(&mut read, &mut to, |bytes| first_reply(bytes, pending)).await {
            return;
        }
    }
}

/// Sends on what is whole of what was read, and keeps the rest. `false` if the connection is to
/// end.
async fn send_on(
    read: &mut Vec<u8>,
    to: &mut OwnedWriteHalf,
    first: impl Fn(&[u8]) -> Option<Next>,
) -> bool {
    let mut ready = 0;
    loop {
        let next = first(read.get(ready..).unwrap_or_default());
        if let Some(Next::Send(length)) = next {
            // Bytes that came together are passed on together.
            ready += length;
            continue;
        }
        if to
            .write_all(read.get(..ready).unwrap_or_default())
            .await
            .is_err()
        {
            return false;
        }
        read.drain(..ready);
        match next {
            Some(Next::Hang(length, gate)) => {
                gate.pass().await;
                ready = length;
            }
            Some(Next::End) => return false,
            _ => return true,
        }
    }
}

/// Decides the fate of the first request in some bytes; `None` while it is incomplete.
fn first_request(bytes: &[u8], kinds: &Kinds, pending: &Pending) -> Option<Next> {
    if bytes.is_empty() {
        return None;
    }
    let frame = match pending.protocol {
        Protocol::Redis => return first_command(bytes, kinds, pending),
        Protocol::Postgres => sql::postgres(bytes, &mut pending.session()),
        Protocol::MySql => sql::mysql(bytes, &mut pending.session()),
        Protocol::Unknown => Frame::Unknown,
    };
    match frame {
        Frame::Part => None,
        Frame::Unknown => Some(Next::Send(bytes.len())),
        Frame::Whole(words, length) => {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let (next, of_reply) = fate(&words, length, kinds);
            pending.put(of_reply);
            Some(next)
        }
    }
}

fn first_command(bytes: &[u8], kinds: &Kinds, pending: &Pending) -> Option<Next> {
    match frames::request(bytes) {
        Frame::Part => None,
        Frame::Unknown => Some(Next::Send(bytes.len())),
        Frame::Whole(words, length) => {
            let (next, of_reply) = fate(&words, length, kinds);
            if !matches!(next, Next::End) {
                pending.push(&words, of_reply);
            }
            Some(next)
        }
    }
}

/// The fate of a request, and the mishap of its reply.
fn fate(words: &[&[u8]], length: usize, kinds: &Kinds) -> (Next, Mishap) {
    let kinds = kinds.read().unwrap_or_else(PoisonError::into_inner);
    let mishap = if words.is_empty() {
        None
    } else {
        kinds.iter().find_map(|kind| kind.meet(words))
    };
    match mishap.unwrap_or(Mishap::Pass) {
        Mishap::LoseRequest => (Next::End, Mishap::Pass),
        Mishap::Hang(gate) => (Next::Hang(length, gate), Mishap::Pass),
        of_reply => (Next::Send(length), of_reply),
    }
}

/// Decides the fate of the first reply in some bytes; `None` while it is incomplete.
fn first_reply(bytes: &[u8], pending: &Pending) -> Option<Next> {
    if bytes.is_empty() {
        return None;
    }
    let all = Some(Next::Send(bytes.len()));
    let (said, length) = match pending.protocol {
        Protocol::Unknown => return all,
        Protocol::MySql if !sql::mysql_reply(bytes, &mut pending.session()) => return None,
        // All that comes is part of it.
        Protocol::Postgres | Protocol::MySql => (ReplyKind::Reply, bytes.len()),
        Protocol::Redis => match frames::reply(bytes) {
            Frame::Part => return None,
            Frame::Whole(said, length) => (said, length),
            Frame::Unknown => return all,
        },
    };
    Some(match said {
        ReplyKind::Reply => match pending.answered() {
            Mishap::LoseReply => Next::End,
            Mishap::HangReply(gate) => Next::Hang(length, gate),
            _ => Next::Send(length),
        },
        ReplyKind::Message => Next::Send(length),
    })
}
